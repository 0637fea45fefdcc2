"""Files of named tensors with their own hash, so that damage shows when they are read."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from apood.support.files import open_regular, parse_json

__all__ = ["pack_sealed", "read_sealed"]

_HASH = "sha256"


def pack_sealed(tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> bytes:
    """Return the content of a safetensors file with `tensors`, and with `facts` and the hash of all as its metadata."""
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return save(content, {**facts, _HASH: _hash(content, facts)})


def read_sealed(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the facts and the tensors of a file; raise OSError or ValueError if it cannot be read or was changed."""
    with open_regular(path) as file:
        content = file.read()
    try:
        tensors = load(content)
        header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    facts = dict(header.get("__metadata__") or {})
    if facts.pop(_HASH, None) != _hash(tensors, facts):
        raise ValueError("it is not as it was written: its hash differs")
    return facts, tensors


def _hash(tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
