"""TextEncoder against the models themselves, run on one text at a time."""

import io
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from plain_loop import pick_states
from tiny_models import FAMILIES, WORDS, word_tokenizer

from apood.encoders.text.encoder import TextEncoder
from apood.support.errors import InputError
from apood.tokens.batch import decode_texts

Models = Callable[[str], Path]


def reference(folder: Path, texts: list[str], layers: int | str) -> list[torch.Tensor]:
    """Return the states of single texts, without padding, from the model of transformers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder)
    model = model.get_encoder() if model.config.is_encoder_decoder else model
    states = []
    with torch.no_grad():
        for text in texts:
            output = model(torch.tensor([tokenizer(text)["input_ids"]]), output_hidden_states=True)
            states.append(pick_states(output.last_hidden_state, output.hidden_states, layers)[0])
    return states


@pytest.mark.parametrize(
    ("family", "layers"),
    [
        ("bert", -1),
        ("bert", 1),
        ("bert_classifier", -1),
        ("roberta", -1),
        ("llama", -1),
        ("llama", 1),
        ("t5", -1),
        *((family, "mix") for family in FAMILIES),
        ("distilbert", "mix:0,3"),
        ("modern_bert", 2),
        ("albert", 2),
    ],
)
def test_states_equal_those_of_single_texts_in_the_order_given(
    models: Models, texts: list[str], family: str, layers: int | str
) -> None:
    folder = models(family)
    batch = TextEncoder(folder, layers=layers, device="cpu").encode(texts)
    expected = reference(folder, texts[:60], layers)
    assert len(batch) == len(texts)
    assert batch.dim == 16
    for states, one in zip(batch, expected, strict=False):
        torch.testing.assert_close(states, one, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["bert", "llama", "t5"])
def test_states_do_not_depend_on_neighbours(models: Models, texts: list[str], family: str) -> None:
    encoder = TextEncoder(models(family), device="cpu")
    together, turned = encoder.encode(texts), encoder.encode(texts[::-1])
    torch.testing.assert_close(turned.select(slice(None, None, -1)).values, together.values, atol=1e-5, rtol=1e-5)


def test_channels_hold_the_ids_with_special_tokens_and_the_texts(models: Models, texts: list[str]) -> None:
    batch = TextEncoder(models("bert"), device="cpu").encode(texts)
    ids = batch.channels["input_ids"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(models("bert"))
    assert ids.values.dtype == torch.int32
    assert [row.tolist() for row in ids] == tokenizer(texts)["input_ids"]
    assert torch.equal(ids.offsets, batch.offsets)
    assert decode_texts(batch.channels["text"]) == texts


def test_empty_texts_have_only_special_tokens(models: Models) -> None:
    empty = ["", "  ", "word1", "\n"]
    assert TextEncoder(models("bert"), device="cpu").encode(empty).lengths.tolist() == [2, 2, 3, 2]
    llama = TextEncoder(models("llama"), device="cpu")
    assert llama.encode(empty).lengths.tolist() == [0, 0, 1, 0]
    assert llama.encode([""]).values.shape == (0, 16)
    assert len(llama.encode([])) == 0
    assert llama.encode([]).dim == 16


def test_long_texts_are_cut_and_counted(models: Models) -> None:
    encoder = TextEncoder(models("bert"), max_tokens=6, on_long="beginning", device="cpu")
    fits, long = " ".join(WORDS[:4]), " ".join(WORDS[:5])
    batch = encoder.encode([fits, long])
    assert encoder.truncated == 1
    assert torch.equal(batch.channels["input_ids"].sequence(0), batch.channels["input_ids"].sequence(1))
    torch.testing.assert_close(batch[0], batch[1])
    encoder.encode([long, long, fits])
    assert encoder.truncated == 3


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_the_limit_of_the_model_applies_if_it_is_smaller(models: Models, family: str) -> None:
    encoder = TextEncoder(models(family), max_tokens=512, on_long="beginning", device="cpu")
    assert encoder.max_tokens == encoder.identity["max_tokens"] == 32
    batch = encoder.encode([" ".join(WORDS * 3)])
    assert batch.lengths.tolist() == [32]
    assert encoder.truncated == 1


def test_the_limit_of_the_tokenizer_applies_if_it_is_smaller(models: Models, tmp_path: Path) -> None:
    folder = shutil.copytree(models("llama"), tmp_path / "short")
    word_tokenizer(model_max_length=7).save_pretrained(folder)
    assert TextEncoder(folder, device="cpu").max_tokens == 7


@pytest.fixture
def byte_model(tmp_path: Path) -> Path:
    """A T5 with a tokenizer that is written in Python and has no vocabulary file."""
    config = transformers.T5Config(vocab_size=384, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    transformers.ByT5Tokenizer().save_pretrained(tmp_path)
    return tmp_path


def test_python_tokenizers_work_too(byte_model: Path) -> None:
    encoder = TextEncoder(byte_model, max_tokens=5, on_long="beginning", device="cpu")
    batch = encoder.encode(["abcd", "abcde", "", "é"])
    assert batch.lengths.tolist() == [5, 5, 1, 3]
    assert encoder.truncated == 1
    # A lone surrogate is tokenised as U+FFFD, and the text stays as it is.
    broken = encoder.encode(["\ud83d", "\ufffd"])
    assert torch.equal(broken[0], broken[1])
    assert decode_texts(broken.channels["text"]) == ["\ud83d", "\ufffd"]


def test_states_can_be_trained_on(models: Models) -> None:
    values = TextEncoder(models("bert"), device="cpu").encode(["word1 word2"]).values
    assert not values.is_inference()
    weight = torch.ones(16, requires_grad=True)
    (values @ weight).square().sum().backward()
    assert weight.grad is not None


def test_dtype_is_that_of_the_states(models: Models, texts: list[str]) -> None:
    half = TextEncoder(models("llama"), device="cpu", dtype=torch.bfloat16).encode(texts)
    whole = TextEncoder(models("llama"), device="cpu").encode(texts)
    assert (half.dtype, whole.dtype) == (torch.bfloat16, torch.float32)
    assert torch.nn.functional.cosine_similarity(half.values.float(), whole.values).median() > 0.99


@pytest.mark.gpu
@pytest.mark.parametrize("layers", [-1, 1, "mix"])
def test_a_gpu_gives_the_same_states(models: Models, texts: list[str], layers: int | str) -> None:
    on_gpu = TextEncoder(models("llama"), layers=layers, device="cuda", dtype=torch.float32).encode(texts)
    on_cpu = TextEncoder(models("llama"), layers=layers, device="cpu").encode(texts)
    assert on_gpu.values.device.type == "cpu"
    torch.testing.assert_close(on_gpu.values, on_cpu.values, atol=1e-4, rtol=1e-4)


def test_loading_and_encoding_are_silent_and_leave_the_random_numbers_alone(
    models: Models, capfd: pytest.CaptureFixture[str]
) -> None:
    logged = io.StringIO()
    handler = logging.StreamHandler(logged)
    before = torch.get_rng_state()
    for family in FAMILIES:
        folder = models(family)
        capfd.readouterr()
        logging.getLogger("transformers").addHandler(handler)
        TextEncoder(folder, device="cpu", max_tokens=4).encode([" ".join(WORDS), "word1"])
        logging.getLogger("transformers").removeHandler(handler)
        captured = capfd.readouterr()
        assert (captured.out, captured.err, logged.getvalue()) == ("", "", ""), family
    assert torch.equal(torch.get_rng_state(), before)
    assert transformers.utils.logging.is_progress_bar_enabled()


def test_joined_pieces_are_the_text(models: Models) -> None:
    encoder = TextEncoder(models("bert"), device="cpu")
    ids = encoder.encode(["word1 word2"]).channels["input_ids"].sequence(0)
    assert encoder.pieces(ids) == ["[A]", " word1", " word2", " [B]"]
    assert encoder.pieces([]) == []


def test_pieces_give_a_character_to_its_last_token(models: Models, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({sign: i for i, sign in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    folder = shutil.copytree(models("llama"), tmp_path / "bytes")
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    encoder = TextEncoder(folder, device="cpu")
    pieces = encoder.pieces(tokenizer.encode("a é🙂").ids)
    assert pieces == ["a", " ", "", "é", "", "", "", "🙂"]
    assert "".join(encoder.pieces(tokenizer.encode("é🙂").ids[:4])) == "é\ufffd"  # cut inside a character


def refused(model: Any, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        TextEncoder(model, **{"device": "cpu", **options})
    return str(error.value)


def test_bad_arguments_are_refused(models: Models, tmp_path: Path) -> None:
    bert = models("bert")
    assert "max_tokens" in refused(bert, max_tokens=0)
    assert "at least 3 for 'bert'" in refused(bert, max_tokens=2)
    assert "Layer 4 of 'bert' does not exist" in refused(bert, layers=4)
    assert "Layer -5 " in refused(bert, layers=-5)
    assert "float32" in refused(bert, dtype=torch.int64)
    assert "'nonsense'" in refused(bert, device="nonsense")
    assert "'cuda:99'" in refused(bert, device="cuda:99")
    (tmp_path / "file").touch()
    assert "is a file" in refused(tmp_path / "file")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["word1", 5], "int at index 1"),
        ([b"word1"], "bytes at index 0"),
        ("word1", "one string"),
    ],
)
def test_other_items_than_texts_are_refused(models: Models, given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TextEncoder(models("bert"), device="cpu").encode(given)


def test_broken_folders_are_refused(models: Models, tmp_path: Path) -> None:
    def copy(name: str, *removed: str) -> Path:
        folder = shutil.copytree(models("bert"), tmp_path / name)
        for pattern in removed:
            for path in folder.glob(pattern):
                path.unlink()
        return folder

    assert "has no config.json" in refused(copy("no config", "config.json"))
    assert "has no tokenizer" in refused(copy("no tokenizer", "tokenizer*", "special*"))
    pickled = copy("pickled", "model.safetensors")
    torch.save({}, pickled / "pytorch_model.bin")
    for without in (copy("no weights", "model.safetensors"), pickled):
        message = refused(without)
        assert "no weights in model.safetensors" in message and ".bin" in message

    cut = copy("cut")
    (cut / "model.safetensors").write_bytes((models("bert") / "model.safetensors").read_bytes()[:-100])
    assert "cannot be loaded" in refused(cut)

    unknown = copy("unknown")
    (unknown / "config.json").write_text('{"model_type": "none_such"}')
    assert "cannot be loaded" in refused(unknown)


def test_weights_that_lack_tensors_are_refused(models: Models, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(models("bert"), tmp_path / "lacking")
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("layer.1.output.dense.weight"))
    del tensors[name]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    message = refused(folder)
    assert "lack 1 tensors of the model" in message
    assert "encoder.layer.1.output.dense.weight'" in message


def test_models_of_other_inputs_are_refused(tmp_path: Path) -> None:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4
    )
    transformers.ViTModel(config).save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    assert "gives no hidden states for token ids" in refused(tmp_path)


def test_a_model_that_cannot_be_found_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    message = refused("nobody-at-all/none-such@main")
    assert "'nobody-at-all/none-such@main'" in message and "local folder" in message
    assert "no folder './not/a/hub/id'" in refused("./not/a/hub/id")


def test_without_transformers_the_extra_is_named(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = models("bert")
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "pip install 'apood[hf]'" in refused(folder)
