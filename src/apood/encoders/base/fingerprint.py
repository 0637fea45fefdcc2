"""The fingerprint of a model: the same wherever its files lie, another when what decides the tokens differs."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from apood.support.errors import InputError
from apood.support.files import sha256_of

__all__ = ["fingerprint", "weight_files"]

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "*vocab*.json",
    "vocab.txt",
    "merges.txt",
    "*.model",
    "*.spm",
)
_WHOLE_FILE = 1 << 30
_TENSOR_SAMPLE = 1 << 16


def fingerprint(folder: Path, *also: str) -> str:
    """A digest of the files in `folder` that decide the tokens: configuration, weights, tokenizer, and those named.

    Weight files of up to 1 GiB count byte by byte. Larger ones would take longer to hash than to load, so
    of them count the header and the first 64 KiB of every tensor: any fine-tuning, quantising or merging
    of adapters shows there.
    """
    weights = weight_files(folder)
    others = {folder / name for name in ("config.json", *also)}.union(
        *(folder.glob(pattern) for pattern in _TOKENIZER_FILES)
    )
    digests = {path.name: sha256_of(path) for path in others}
    digests |= {path.name: _weights_digest(path) for path in weights}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold the weights of the model in `folder`; none when there are none."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        return []
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{index} must be a JSON index of weight files with a 'weight_map', and is not.") from error
    for name in sorted(names):
        if not (folder / name).is_file():
            raise InputError(f"{index} names the weight file {name!r}, which is not in {folder}.")
    return [folder / name for name in sorted(names)]


def _weights_digest(path: Path) -> str:
    if path.stat().st_size <= _WHOLE_FILE:
        return sha256_of(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for piece in _samples(file):
            digest.update(piece)
    return digest.hexdigest()


def _samples(file: BinaryIO) -> Iterator[bytes]:
    """The header of a safetensors file, then the beginning of each tensor."""
    size = file.read(8)
    header = file.read(int.from_bytes(size, "little"))
    yield size + header
    data = file.tell()
    tensors = (entry["data_offsets"] for name, entry in json.loads(header).items() if name != "__metadata__")
    for start, stop in sorted(tensors):
        file.seek(data + start)
        yield file.read(min(stop - start, _TENSOR_SAMPLE))
