"""Tiny random models of every family, saved like real ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

WORDS = [f"word{i}" for i in range(40)]


def made_once(root: Path) -> Callable[[str], Path]:
    """Return a function that returns the folder of a tiny model of a family, made in `root` on first use."""

    def folder(family: str) -> Path:
        if not (root / family).exists():
            save_model(family, root / family)
        return root / family

    return folder


def word_tokenizer(prefix: str = "", suffix: str = "", **options: Any) -> Any:
    """Return a tokenizer with one token per word; it adds the special tokens `prefix` and `suffix` to every text."""
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


def _bert_classifier() -> tuple[Any, Any]:
    from transformers import BertForSequenceClassification

    model, tokenizer = _bert()
    model.config.num_labels = 5
    return BertForSequenceClassification(model.config), tokenizer


def _roberta() -> tuple[Any, Any]:
    from transformers import RobertaConfig, RobertaModel

    config = RobertaConfig(
        vocab_size=44, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=34, initializer_range=0.2, pad_token_id=1, type_vocab_size=1,
    )  # fmt: skip
    return RobertaModel(config), word_tokenizer("[A]", "[B]")


def _distilbert() -> tuple[Any, Any]:
    from transformers import DistilBertConfig, DistilBertModel

    config = DistilBertConfig(
        vocab_size=44, dim=16, n_layers=3, n_heads=2, hidden_dim=32, max_position_embeddings=32, initializer_range=0.2
    )
    return DistilBertModel(config), word_tokenizer("[A]", "[B]", pad_token="[PAD]")


def _modern_bert() -> tuple[Any, Any]:
    from transformers import ModernBertConfig, ModernBertModel

    config = ModernBertConfig(
        vocab_size=44, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32, initializer_range=0.2, pad_token_id=0, cls_token_id=2, sep_token_id=3,
        bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    return ModernBertModel(config), word_tokenizer("[A]", "[B]", pad_token="[PAD]")


def _albert() -> tuple[Any, Any]:
    from transformers import AlbertConfig, AlbertModel  # all of its layers are one module

    config = AlbertConfig(
        vocab_size=44, embedding_size=8, hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32, initializer_range=0.2,
    )  # fmt: skip
    return AlbertModel(config), word_tokenizer("[A]", "[B]", pad_token="[PAD]")


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

    config = GPT2Config(
        vocab_size=44, n_embd=16, n_layer=3, n_head=2, n_positions=64, initializer_range=0.2, bos_token_id=2,
        eos_token_id=2,
    )  # fmt: skip
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

    config = T5Config(
        vocab_size=44, d_model=16, d_kv=8, d_ff=32, num_layers=3, num_heads=2, decoder_start_token_id=0, eos_token_id=3
    )  # fmt: skip
    return T5ForConditionalGeneration(config), word_tokenizer(suffix="[B]", pad_token="[PAD]", eos_token="[B]")


def _bart_like(config_class: Any, model_class: Any) -> Any:
    return model_class(
        config_class(
            vocab_size=44, d_model=16, encoder_layers=3, decoder_layers=2, encoder_attention_heads=2,
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
    "bert_classifier": _bert_classifier,
    "roberta": _roberta,
    "distilbert": _distilbert,
    "modern_bert": _modern_bert,
    "albert": _albert,
    "llama": _llama,
    "gpt_neox": _gpt_neox,
    "gpt2": _gpt2,
    "opt": _opt,
    "t5": _t5,
    "bart": _bart,
    "marian": _marian,
    "pegasus": _pegasus,
}

ENDS = [3, 8, 10, 13, 15, 19, 30, 32, 43]
"""Ids that end an output: enough of them for random models to produce one."""

CAUSAL = ("llama", "gpt_neox", "gpt2", "opt")
ENCODER_DECODER = ("t5", "bart", "marian", "pegasus")


def save_model(family: str, folder: Path) -> None:
    """Save a random model of the family, always the same, and its tokenizer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, tokenizer = FAMILIES[family]()
    # New models have zero biases and unit norms, which would hide a state taken before the final norm, or a missing
    # bias of the logits.
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer.copy_(torch.randn(buffer.shape, generator=generator))
    if model.can_generate():
        model.generation_config.eos_token_id = ENDS
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
