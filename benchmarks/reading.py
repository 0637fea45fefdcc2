"""Reading a token store from the system's cache: in order, and a random part of it."""

import tempfile
from pathlib import Path

import numpy as np
import torch

from apood.tokens.source import TokenSource, split
from apood.tokens.store import TokenStore
from benchmarks.inputs import Setting
from benchmarks.memory import write
from benchmarks.record import Row
from benchmarks.timing import Call, measure

__all__ = ["measure_rows"]

_FROM_FILE, _COPY = "numpy.fromfile of its shards", "copy into memory that is in use"
_BATCH_BYTES = 2**27  # what a pass over a corpus reads at once
_SHARE = 0.8


def measure_rows(setting: Setting) -> list[Row]:
    """Return the time to read a store in batches, compared with plain files and with copies in memory."""
    gigabytes, dim = (0.004, 64) if setting.quick else (1.0, 1024)
    with tempfile.TemporaryDirectory() as folder:
        store = TokenStore(write(Path(folder) / "store", gigabytes, dim))
        shards = sorted((Path(folder) / "store").glob("*.safetensors"))
        part = split(store, _SHARE, seed=0)[1]
        names: dict[str, TokenSource] = {"TokenStore.batches": store, "TokenStore.batches of 80% at random": part}
        size = int(store.lengths.sum()) * dim * 2
        calls: dict[str, Call] = {name: _read_all(source) for name, source in names.items()}
        calls |= {_FROM_FILE: lambda: [np.fromfile(shard, np.uint8) for shard in shards], _COPY: _copy_file(size)}
        found = measure("cpu", calls, seconds=setting.seconds)
    baseline, limit = found[_FROM_FILE].median, found[_COPY].median
    shape = f"{len(store)} sequences, {size / 1e9:.2g} GB"
    return [
        Row("reading", name, shape, "bfloat16", "ms", found[name].median, _FROM_FILE, share * baseline, _COPY,
            share * limit, found[name].peak_mib)
        for name, share in zip(names, (1.0, _SHARE), strict=True)
    ]  # fmt: skip


def _read_all(source: TokenSource) -> Call:
    def run() -> None:
        for _ in source.batches(_BATCH_BYTES // (2 * source.dim)):
            pass

    return run


def _copy_file(size: int) -> Call:
    """Return a call that copies a batch at a time, as the store is read."""
    step = min(size, _BATCH_BYTES)
    one, other = torch.zeros(step, dtype=torch.uint8), torch.ones(step, dtype=torch.uint8)

    def run() -> None:
        for start in range(0, size, step):
            one[: size - start].copy_(other[: size - start])

    return run
