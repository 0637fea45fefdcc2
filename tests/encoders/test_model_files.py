"""Model folders from elsewhere: what is refused before transformers opens any of their files."""

import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from apood.encoders.base.pretrained import find_pretrained, load_config
from apood.encoders.text.encoder import TextEncoder
from apood.support.errors import InputError

Models = Callable[[str], Path]


@pytest.fixture
def folder(models: Models, tmp_path: Path) -> Path:
    return shutil.copytree(models("bert"), tmp_path / "outer" / "model")


@pytest.fixture
def unopened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every call of transformers fail."""

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("transformers was called")

    for name in ("AutoConfig", "AutoTokenizer", "AutoModel"):
        monkeypatch.setattr(getattr(transformers, name), "from_pretrained", fail)


def configure(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def refused(folder: Path) -> str:
    with pytest.raises(InputError) as error:
        TextEncoder(folder, device="cpu")
    return str(error.value)


@pytest.mark.usefixtures("unopened")
@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json", "vocab.txt"])
def test_huge_files_and_links_to_nothing_are_refused(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("nothing")
    assert f"{name}' is a link to nothing" in refused(folder)
    (folder / name).unlink()
    with (folder / name).open("wb") as file:
        file.truncate(1 << 36)  # it takes no space on the disk
    assert "but the limit for such a file is 256 MiB" in refused(folder)


def edit_json(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_damaged_tokenizers_and_architectures_are_refused(folder: Path) -> None:
    kept = {name: (folder / name).read_bytes() for name in ("tokenizer_config.json", "tokenizer.json", "config.json")}
    for name, change, sentence in (
        ("tokenizer_config.json", lambda c: c.update(model_max_length={"a": 1}), "model_max_length is"),
        ("tokenizer.json", lambda c: c["model"].update(unk_token=""), "The tokenizer of 'model' cannot be used"),
        ("config.json", lambda c: c.update(architectures=[{}]), "must have a list of names as 'architectures'"),
        ("config.json", lambda c: c.update(architectures="BertModel"), "must have a list of names as 'architectures'"),
    ):
        edit_json(folder / name, change)
        assert sentence in refused(folder)
        (folder / name).write_bytes(kept[name])
    TextEncoder(folder, device="cpu")


def test_token_ids_that_the_model_does_not_know_are_refused(folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["foreign"])
    tokenizer.save_pretrained(folder)
    encoder = TextEncoder(folder, device="cpu")
    assert len(encoder.encode(["word1"])) == 1
    with pytest.raises(InputError, match=r"gives the token id 44, but the model has embeddings for 44 tokens"):
        encoder.encode(["word1 foreign"])


@pytest.mark.usefixtures("unopened")
@pytest.mark.parametrize(
    "name",
    ["weights.bin", "../weights.safetensors", "/weights.safetensors", "inner/a.safetensors", "..\\a.safetensors", 5],
)
def test_an_index_may_only_name_safetensors_in_its_folder(folder: Path, name: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "inner").mkdir()
    for copy in ("../weights.safetensors", "inner/a.safetensors", "..\\a.safetensors"):
        shutil.copy(folder / "model.safetensors", folder / copy)
    torch.save(tensors, folder / "weights.bin")
    (folder / "model.safetensors").unlink()
    name = str(folder.parent) + name if str(name).startswith("/") else name
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    message = refused(folder)
    assert repr(name) in message and "only loaded from .safetensors files in the model's own folder" in message


@pytest.mark.usefixtures("unopened")
@pytest.mark.parametrize(
    "settings",
    [
        {"num_hidden_layers": 10**7},
        {"num_hidden_layers": 10**4000},
        {"text_config": {"encoder_layers": 10**7}},
        {"hidden_size": 10**9},
        {"vocab_size": 10**12},
        {"num_labels": 10**9},
        {"max_position_embeddings": 10**12},
    ],
)
def test_a_configuration_that_promises_more_than_the_weights_hold_is_refused(
    folder: Path, settings: dict[str, Any]
) -> None:
    configure(folder, **settings)
    message = refused(folder)
    assert "limit is" in message and "do not belong together" in message


@pytest.mark.parametrize("settings", [{"hidden_size": 16_000}, {"max_position_embeddings": 10**8}])
def test_a_model_far_larger_than_its_weights_is_refused_before_it_takes_memory(
    folder: Path, settings: dict[str, int]
) -> None:
    configure(folder, **settings)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "but its weights have only" in refused(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 << 10


@pytest.mark.usefixtures("unopened")
@pytest.mark.parametrize(
    ("settings", "fact"),
    [
        ({"transformers_weights": "other.safetensors"}, "'transformers_weights'"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "'mxfp4'"),
        ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, "'fp8'"),
    ],
)
def test_settings_that_load_other_files_or_code_are_refused(folder: Path, settings: dict[str, Any], fact: str) -> None:
    configure(folder, **settings)
    assert fact in refused(folder)


@pytest.mark.usefixtures("unopened")
def test_adapters_are_refused(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/else"}')
    assert "merge the adapter" in refused(folder)


@pytest.mark.usefixtures("unopened")
@pytest.mark.parametrize("content", ["[" * 100_000, f'{{"a": {"9" * 5000}}}', "[]", "{", "\udcff"])
def test_a_configuration_that_is_no_json_object_is_refused(folder: Path, content: str) -> None:
    (folder / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    assert "config.json is not" in refused(folder)


@pytest.mark.usefixtures("unopened")
@pytest.mark.parametrize("header", [b"", b"\xff" * 8, (9).to_bytes(8, "little") + b"[" * 9, b"\x02" + bytes(7) + b"[]"])
def test_weights_without_a_proper_header_are_refused(folder: Path, header: bytes) -> None:
    (folder / "model.safetensors").write_bytes(header)
    assert "no proper header" in refused(folder)


@pytest.mark.usefixtures("unopened")
@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "generation_config.json"])
def test_a_pipe_in_the_folder_is_refused_at_once(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert "only regular files are read" in refused(folder)


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_no_kernel_is_fetched_for_a_configuration_that_names_one(
    models: Models, folder: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    import transformers.modeling_utils

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("a kernel was fetched")

    monkeypatch.setattr(transformers.modeling_utils, "lazy_import_flash_attention", fail)
    configure(folder, **{key: "someone/kernel"})
    assert load_config(find_pretrained(folder))._attn_implementation is None
    found, expected = (TextEncoder(each, device="cpu").encode(["word1 word2"]) for each in (folder, models("bert")))
    assert torch.equal(found.values, expected.values)


def test_an_implementation_of_transformers_itself_is_kept(folder: Path) -> None:
    configure(folder, attn_implementation="eager")
    assert load_config(find_pretrained(folder))._attn_implementation == "eager"


def test_remote_code_is_never_run(folder: Path) -> None:
    (folder / "own.py").write_text("raise SystemExit('remote code ran')")
    configure(folder, auto_map={"AutoConfig": "own.Config", "AutoModel": "own.Model"})
    assert len(TextEncoder(folder, device="cpu").encode(["word1"])) == 1
    configure(folder, model_type="own")
    assert "cannot be loaded" in refused(folder)
