"""Architectures with a peculiarity, against the models themselves, run on one text at a time."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_models import ENDS, word_tokenizer

from apood.backbones.corpus import train_vocabulary
from apood.data.record import Pair
from apood.encoders.text.encoder import TextEncoder
from apood.support.errors import InputError

SIZES = {"vocab_size": 44, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
STACK = {**SIZES, "intermediate_size": 32, "max_position_embeddings": 64, "initializer_range": 0.2}
ENDED = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
T5 = {"vocab_size": 44, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 3, "num_heads": 2, **ENDED}
BART = {
    "vocab_size": 44, "d_model": 16, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64,
    "init_std": 0.2, "decoder_start_token_id": 2, **ENDED,
}  # fmt: skip

Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Return a function that saves a random model of a class with a configuration, and a tokenizer of words."""

    def save_model(model_class: Any, config: Any, prefix: str = "[A]", suffix: str = "") -> Path:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = model_class(config)
        if model.can_generate():
            model.generation_config.eos_token_id = ENDS
        model.save_pretrained(tmp_path / "model")
        tokenizer = word_tokenizer(prefix, suffix, pad_token="[PAD]", bos_token="[A]", eos_token="[B]")
        tokenizer.save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return save_model


def list_ids(folder: Path, text: str) -> torch.Tensor:
    return torch.tensor([transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"]])


@torch.no_grad()
def check_inputs(folder: Path, texts: list[str], model: Any) -> None:
    """Check the last states of texts that are read together against those of single texts."""
    batch = TextEncoder(folder, layers=-1, device="cpu").encode(texts)
    for states, text in zip(batch, texts, strict=True):
        expected = model(list_ids(folder, text)).last_hidden_state[0]
        torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["ConvBert", "FNet", "Nystromformer"])
def test_texts_of_a_model_that_mixes_padding_into_states_are_read_by_length(
    save: Save, texts: list[str], family: str
) -> None:
    """Convolutions, Fourier transforms and landmarks see the padding of a batch, whatever the mask says."""
    extra = {"embedding_size": 16, "head_ratio": 1} if family == "ConvBert" else {}
    config = getattr(transformers, f"{family}Config")(**STACK, **extra)
    folder = save(getattr(transformers, f"{family}Model"), config)
    check_inputs(folder, texts[:20], transformers.AutoModel.from_pretrained(folder))
    encoder = TextEncoder(folder, device="cpu")
    prepared = encoder.prepare(texts)
    batches = [prepared.sources.lengths[chosen] for chosen in encoder.batches(prepared)]
    assert all(len(lengths.unique()) == 1 for lengths in batches)
    assert sum(map(len, batches)) == len(texts) > len(batches)


def test_a_model_without_a_limit_of_positions_is_read(save: Save, texts: list[str]) -> None:
    config = transformers.XLNetConfig(vocab_size=44, d_model=16, n_layer=3, n_head=2, d_inner=32)
    folder = save(transformers.XLNetModel, config)
    check_inputs(folder, texts[:10], transformers.AutoModel.from_pretrained(folder))


def test_an_encoder_that_was_saved_without_its_decoder_is_read(save: Save, texts: list[str]) -> None:
    folder = save(transformers.T5EncoderModel, transformers.T5Config(**T5), "", "[B]")
    check_inputs(folder, texts[:10], transformers.T5EncoderModel.from_pretrained(folder))


@pytest.mark.parametrize("family", ["M2M100", "Blenderbot"])
def test_models_that_shift_targets_only_inside_a_pass_have_references(
    save: Save, texts: list[str], family: str
) -> None:
    config = getattr(transformers, f"{family}Config")(**BART)
    folder = save(getattr(transformers, f"{family}ForConditionalGeneration"), config, "", "[B]")
    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    pairs = [Pair(source, target) for source, target in zip(texts[:8], texts[20:28], strict=True)]
    batch = TextEncoder(folder, mode="reference", device="cpu").encode(pairs)
    for logprobs, pair in zip(batch.channels["token_logprobs"], pairs, strict=True):
        with torch.no_grad():
            loss = model(list_ids(folder, pair.source), labels=list_ids(folder, pair.target)).loss
        assert float(-logprobs.mean()) == pytest.approx(float(loss), abs=1e-5)


def test_an_encoder_decoder_model_with_experts_generates(save: Save, texts: list[str]) -> None:
    config = transformers.SwitchTransformersConfig(**T5, num_decoder_layers=3, num_experts=2, decoder_start_token_id=0)
    folder = save(transformers.SwitchTransformersForConditionalGeneration, config, "", "[B]")
    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    output = TextEncoder(folder, mode="output", max_new_tokens=6, device="cpu").encode(texts[:8])
    for ids, text in zip(output.channels["input_ids"], texts[:8], strict=True):
        with torch.no_grad():
            new = model.generate(list_ids(folder, text), max_new_tokens=6, do_sample=False)[0, 1:].tolist()
        assert ids.tolist() == new


def save_gemma(save: Save, kind: str) -> Path:
    text = {**STACK, **ENDED, "head_dim": 8, "num_key_value_heads": 1, "sliding_window": 8}
    vision = {**STACK, "num_hidden_layers": 1, "image_size": 16, "patch_size": 8}
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, image_token_id=40, mm_tokens_per_image=4, num_labels=5
    )
    return save(getattr(transformers, f"Gemma3For{kind}"), config)


def test_a_model_that_also_takes_images_is_a_language_model(save: Save, texts: list[str]) -> None:
    folder = save_gemma(save, "ConditionalGeneration")
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)
    encoder = TextEncoder(folder, device="cpu", max_new_tokens=6)
    assert encoder.max_tokens == 64
    batch = encoder.encode(texts[:8])
    output = TextEncoder(folder, mode="output", max_new_tokens=6, device="cpu").encode(texts[:8])
    for index, text in enumerate(texts[:8]):
        ids = list_ids(folder, text)
        with torch.no_grad():
            loss = model(ids, labels=ids).loss
            new = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)[0, ids.shape[1] :].tolist()
        assert float(-batch.channels["token_logprobs"].sequence(index).mean()) == pytest.approx(float(loss), abs=1e-5)
        assert output.channels["input_ids"].sequence(index).tolist() == new


def test_a_classifier_that_also_takes_images_has_logits(save: Save, texts: list[str]) -> None:
    folder = save_gemma(save, "SequenceClassification")
    together = TextEncoder(folder, device="cpu").encode(texts[:8]).channels["logits"]
    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    for logits, text in zip(together, texts[:8], strict=True):
        with torch.no_grad():
            torch.testing.assert_close(logits, model(list_ids(folder, text)).logits, atol=1e-5, rtol=1e-4)


def test_a_last_state_of_another_length_stays_out_of_the_mix(save: Save, texts: list[str]) -> None:
    """As in opt-350m, whose last state is projected to the length of its embeddings."""
    config = transformers.OPTConfig(**SIZES, **ENDED, ffn_dim=32, word_embed_proj_dim=8, do_layer_norm_before=False)
    folder = save(transformers.OPTForCausalLM, config)
    mixed = TextEncoder(folder, device="cpu").encode(texts[:5])
    last = TextEncoder(folder, layers=-1, device="cpu").encode(texts[:5])
    assert (mixed.dim, mixed.channels["summary"].values.shape[1]) == (16, 8)
    assert (last.dim, last.channels["summary"].values.shape[1]) == (8, 16)
    layer: Any = transformers.AutoModel.from_pretrained(folder)
    seen: list[Any] = []
    for module in layer.decoder.layers:
        module.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    with torch.no_grad():
        layer(list_ids(folder, texts[0]))
    states = [torch.nn.functional.normalize(output[0] if output[0].ndim == 3 else output, dim=-1) for output in seen]
    torch.testing.assert_close(mixed.sequence(0), torch.stack(states).mean(0)[0], atol=1e-5, rtol=1e-4)


def test_log_probabilities_of_tied_and_capped_heads(save: Save, texts: list[str]) -> None:
    folder = save(transformers.UMT5ForConditionalGeneration, transformers.UMT5Config(**T5, decoder_start_token_id=0))
    assert "token_logprobs" in TextEncoder(folder, mode="output", max_new_tokens=3).encode(texts[:2]).channels
    config = transformers.RecurrentGemmaConfig(
        **STACK, **ENDED, lru_width=16, attention_window_size=8, head_dim=8, num_key_value_heads=1
    )
    folder = save(transformers.RecurrentGemmaForCausalLM, config)
    assert "token_logprobs" in TextEncoder(folder).encode(texts[:2]).channels


@pytest.mark.parametrize("family", ["Bart", "T5"])
def test_an_end_inside_a_text_does_not_disturb_the_other_texts(save: Save, texts: list[str], family: str) -> None:
    settings = T5 | {"decoder_start_token_id": 0} if family == "T5" else BART
    config = getattr(transformers, f"{family}Config")(**settings, num_labels=5)
    folder = save(getattr(transformers, f"{family}ForSequenceClassification"), config, "", "[B]")
    encoder = TextEncoder(folder, device="cpu")
    given = [*texts[:3], "word1 [B] word2", *texts[3:6]]
    together = encoder.encode(given)
    for index, text in enumerate(given):
        alone = encoder.encode([text])
        torch.testing.assert_close(together.sequence(index), alone.values, atol=1e-5, rtol=1e-4)
        logits = together.channels["logits"].sequence(index)
        torch.testing.assert_close(logits, alone.channels["logits"].values, atol=1e-5, rtol=1e-4)


def test_layers_with_another_number_of_states_than_tokens_are_refused(save: Save) -> None:
    folder = save(transformers.PegasusXForConditionalGeneration, transformers.PegasusXConfig(**BART), "", "[B]")
    with pytest.raises(InputError, match=r"The layers -1 of 'model' \(PegasusXModel\) do not give one state.*512"):
        TextEncoder(folder, device="cpu")


def test_the_message_about_other_models_says_what_fails(save: Save) -> None:
    folder = save(transformers.DPRQuestionEncoder, transformers.DPRConfig(**STACK))
    with pytest.raises(InputError, match=r"no hidden states for token ids \(.*'last_hidden_state'\): allowed are"):
        TextEncoder(folder, device="cpu")


def test_a_model_of_other_sounds_is_refused_by_what_it_lacks(save: Save) -> None:
    config = transformers.Wav2Vec2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, conv_dim=(16, 16),
        conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        num_codevectors_per_group=320,
    )  # fmt: skip
    folder = save(transformers.Wav2Vec2Model, config)
    with pytest.raises(InputError, match=r"\(Wav2Vec2Model\) gives no hidden .* for sounds, audio spectrogram"):
        TextEncoder(folder, device="cpu")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="has no tokenizer: one of tokenizer"):
        TextEncoder(folder, device="cpu")


def test_a_tokenizer_of_many_languages_needs_that_of_the_targets(tmp_path: Path) -> None:
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "pieces.model").write_bytes(train_vocabulary(["one two three"] * 9, 12))
    tokenizer = transformers.M2M100Tokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "pieces.model"))
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "pieces.model").unlink()
    transformers.M2M100ForConditionalGeneration(
        transformers.M2M100Config(**{**BART, "vocab_size": 200, "pad_token_id": 1})
    ).save_pretrained(tmp_path)
    encoder = TextEncoder(tmp_path, mode="reference", device="cpu")
    with pytest.raises(InputError, match=r"needs the language of the targets: set tgt_lang in its tokenizer_config"):
        encoder.encode([Pair("one", "two")])
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "tgt_lang": "fr"}))
    batch = TextEncoder(tmp_path, mode="reference", device="cpu").encode([Pair("one", "two")])
    french = tokenizer.convert_tokens_to_ids("__fr__")
    ids = batch.channels["input_ids"].values.tolist()
    assert (ids[0], ids[-1]) == (french, 2)
