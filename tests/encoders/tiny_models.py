"""Tiny random models of every family, saved the way real ones are."""

from collections.abc import Callable
from typing import Any

WORDS = [f"word{i}" for i in range(40)]


def word_tokenizer(prefix: str = "", suffix: str = "", **options: Any) -> Any:
    """One token a word; `prefix` and `suffix` are special tokens that it adds to every text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[A]", "[B]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if prefix or suffix:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{prefix} $A {suffix}".strip(), special_tokens=[("[A]", 2), ("[B]", 3)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", **options)


def _bert() -> tuple[Any, Any]:
    from transformers import BertConfig, BertForMaskedLM  # its checkpoints have no pooler

    config = BertConfig(
        vocab_size=44, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32, initializer_range=0.2,
    )  # fmt: skip
    return BertForMaskedLM(config), word_tokenizer("[A]", "[B]", pad_token="[PAD]", cls_token="[A]", sep_token="[B]")


def _roberta() -> tuple[Any, Any]:
    from transformers import RobertaConfig, RobertaModel

    config = RobertaConfig(
        vocab_size=44, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=34, initializer_range=0.2, pad_token_id=1, type_vocab_size=1,
    )  # fmt: skip
    return RobertaModel(config), word_tokenizer("[A]", "[B]")


def _llama() -> tuple[Any, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=44, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, initializer_range=0.2, rms_norm_eps=0.01,
    )  # fmt: skip
    return LlamaForCausalLM(config), word_tokenizer()


def _gpt_neox() -> tuple[Any, Any]:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        vocab_size=44, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, initializer_range=0.2,
    )  # fmt: skip
    return GPTNeoXForCausalLM(config), word_tokenizer()


def _gpt2() -> tuple[Any, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=44, n_embd=16, n_layer=3, n_head=2, n_positions=64, initializer_range=0.2)
    return GPT2LMHeadModel(config), word_tokenizer("[A]", bos_token="[A]")


def _opt() -> tuple[Any, Any]:
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=44, hidden_size=16, word_embed_proj_dim=16, num_hidden_layers=3, num_attention_heads=2, ffn_dim=32,
        max_position_embeddings=64, init_std=0.2,
    )  # fmt: skip
    return OPTForCausalLM(config), word_tokenizer("[A]", pad_token="[PAD]", bos_token="[A]")


def _t5() -> tuple[Any, Any]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=44, d_model=16, d_kv=8, d_ff=32, num_layers=3, num_heads=2)
    return T5ForConditionalGeneration(config), word_tokenizer(suffix="[B]", pad_token="[PAD]", eos_token="[B]")


def _bart_like(config_class: Any, model_class: Any) -> Any:
    return model_class(
        config_class(
            vocab_size=44, d_model=16, encoder_layers=3, decoder_layers=1, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, init_std=0.2,
            pad_token_id=0, bos_token_id=2, eos_token_id=3, decoder_start_token_id=0, forced_eos_token_id=3,
        )
    )  # fmt: skip


def _bart() -> tuple[Any, Any]:
    from transformers import BartConfig, BartForConditionalGeneration

    tokenizer = word_tokenizer("[A]", "[B]", pad_token="[PAD]", bos_token="[A]", eos_token="[B]")
    return _bart_like(BartConfig, BartForConditionalGeneration), tokenizer


def _marian() -> tuple[Any, Any]:
    from transformers import MarianConfig, MarianMTModel

    return _bart_like(MarianConfig, MarianMTModel), word_tokenizer(suffix="[B]", pad_token="[PAD]", eos_token="[B]")


def _pegasus() -> tuple[Any, Any]:
    from transformers import PegasusConfig, PegasusForConditionalGeneration

    tokenizer = word_tokenizer(suffix="[B]", pad_token="[PAD]", eos_token="[B]")
    return _bart_like(PegasusConfig, PegasusForConditionalGeneration), tokenizer


FAMILIES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "bert": _bert,
    "roberta": _roberta,
    "llama": _llama,
    "gpt_neox": _gpt_neox,
    "gpt2": _gpt2,
    "opt": _opt,
    "t5": _t5,
    "bart": _bart,
    "marian": _marian,
    "pegasus": _pegasus,
}
