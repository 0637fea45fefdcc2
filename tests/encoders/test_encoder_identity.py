"""Which encoders have the same identity."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_models import word_tokenizer

from apood.encoders.base import pretrained
from apood.encoders.base.model_files import find_weight_files
from apood.encoders.base.pretrained import fingerprint
from apood.encoders.embed import embed_to_store
from apood.encoders.opening import reopen_encoder
from apood.encoders.text.encoder import TextEncoder
from apood.support.errors import InputError, StoreError
from apood.tokens.identity import same_encoder

Models = Callable[[str], Path]


def change_one_weight(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = sorted(tensors)[len(tensors) // 2]
    tensors[name].view(-1)[-1] += 1e-3
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_identity_names_everything_that_decides_the_tokens(models: Models) -> None:
    found = TextEncoder(models("bert"), max_tokens=20, layers=-2, device="cpu").identity
    assert found == {
        "model": "bert",
        "revision": None,
        "layers": "2",
        "mode": "input",
        "max_tokens": 20,
        "on_long": "windows",
        "fingerprint": fingerprint(models("bert")),
        "folder": str(models("bert")),
    }
    assert json.loads(json.dumps(found)) == found


def test_a_copy_elsewhere_is_the_same_encoder(models: Models, tmp_path: Path) -> None:
    copy = shutil.copytree(models("bert"), tmp_path / "other name")
    (copy / "README.md").write_text("not part of the model")
    here, there = TextEncoder(models("bert"), device="cpu").identity, TextEncoder(copy, device="cpu").identity
    assert there["model"] == "other name"
    assert same_encoder(here, there)
    assert same_encoder(
        TextEncoder(copy, layers=-2, device="cpu").identity, TextEncoder(copy, layers=2, device="cpu").identity
    )
    assert not same_encoder(here, TextEncoder(copy, layers=2, device="cpu").identity)
    assert not same_encoder(here, TextEncoder(copy, max_tokens=5, device="cpu").identity)


def test_samples_are_in_the_identity_but_do_not_change_the_encoder(models: Models, tmp_path: Path) -> None:
    """They change no token, but a store does not mix samples that were drawn with different settings."""

    def encoder(**options: int) -> TextEncoder:
        return TextEncoder(models("marian"), device="cpu", **options)

    drawn = encoder(samples=2, max_new_tokens=3)
    assert (drawn.identity["samples"], drawn.identity["sample_tokens"], drawn.identity["seed"]) == (2, 3, 0)
    assert same_encoder(drawn.identity, encoder().identity)
    embed_to_store(["word1", "word2"], drawn, tmp_path / "store")
    for other in ({}, {"samples": 3}, {"samples": 2, "max_new_tokens": 4}, {"samples": 2, "seed": 1}):
        with pytest.raises(StoreError, match="another encoder"):
            embed_to_store(
                ["word1", "word2"], encoder(**{"max_new_tokens": 3} | other), tmp_path / "store", resume=True
            )
    assert embed_to_store(["word1", "word2"], drawn, tmp_path / "store", resume=True).skipped == 2


@pytest.mark.parametrize("whole_file", [pretrained._WHOLE_FILE, 0])
def test_other_weights_are_another_encoder(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_file: int
) -> None:
    monkeypatch.setattr(pretrained, "_WHOLE_FILE", whole_file)
    copy = shutil.copytree(models("bert"), tmp_path / "copy")
    assert fingerprint(copy) == fingerprint(models("bert"))
    change_one_weight(copy)
    assert fingerprint(copy) != fingerprint(models("bert"))


def test_large_files_are_sampled_tensor_by_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "_WHOLE_FILE", 0)
    tensors = {"a": torch.zeros(40_000), "b": torch.zeros(3)}

    def digest() -> str:
        save_file(tensors, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text("{}")
        return fingerprint(tmp_path)

    first = digest()
    tensors["a"][0] = 1  # within the first 64 KiB of its tensor
    second = digest()
    tensors["b"][-1] = 1
    third = digest()
    tensors["a"][-1] = 1  # beyond them
    assert len({first, second, third}) == 3
    assert digest() == third


def test_another_tokenizer_or_configuration_is_another_encoder(models: Models, tmp_path: Path) -> None:
    other_tokenizer = shutil.copytree(models("llama"), tmp_path / "a")
    word_tokenizer("[A]").save_pretrained(other_tokenizer)
    other_config = shutil.copytree(models("llama"), tmp_path / "b")
    config = json.loads((other_config / "config.json").read_text())
    (other_config / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}))
    assert len({fingerprint(folder) for folder in (models("llama"), other_tokenizer, other_config)}) == 3


def test_names_decide_without_a_fingerprint() -> None:
    described = {"model": "a", "layers": "-1"}
    assert same_encoder(described, dict(described))
    assert not same_encoder(described, {"model": "b", "layers": "-1"})
    assert not same_encoder(described, {"model": "a"})
    assert not same_encoder(described, described | {"fingerprint": "0"})
    assert same_encoder(described | {"fingerprint": "0"}, {"model": "b", "layers": "-1", "fingerprint": "0"})


def test_weights_in_several_files_are_loaded_and_counted(models: Models, tmp_path: Path) -> None:
    sharded = shutil.copytree(models("llama"), tmp_path / "sharded", ignore=shutil.ignore_patterns("*.safetensors"))
    transformers.AutoModelForCausalLM.from_pretrained(models("llama")).save_pretrained(sharded, max_shard_size="8KB")
    files = find_weight_files(sharded)
    assert len(files) > 1
    one, several = (TextEncoder(folder, device="cpu").encode(["word1 word2"]) for folder in (models("llama"), sharded))
    assert torch.equal(one.values, several.values)
    before = fingerprint(sharded)
    files[-1].write_bytes(files[-1].read_bytes()[:-1] + b"\x00")
    assert fingerprint(sharded) != before
    files[0].unlink()
    with pytest.raises(InputError, match=files[0].name):
        TextEncoder(sharded, device="cpu")
    (sharded / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(InputError, match="weight_map"):
        TextEncoder(sharded, device="cpu")


def test_a_model_that_a_detector_names_is_not_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def find(name: str, **options: Any) -> None:
        asked.append((name, options["revision"], options["local_files_only"]))
        raise FileNotFoundError("not here")

    monkeypatch.setattr("huggingface_hub.snapshot_download", find)
    identity = {"model": "stranger/model", "revision": "abc", "layers": "-1", "mode": "input", "max_tokens": 8}
    with pytest.raises(
        InputError, match=r"'stranger/model@abc' of the Hugging Face hub is not on this machine.*--model"
    ):
        reopen_encoder(identity)
    with pytest.raises(InputError, match="no such model on the Hugging Face hub"):
        reopen_encoder(identity, "stranger/model@abc")
    assert asked == [("stranger/model", "abc", True), ("stranger/model", "abc", False)]
