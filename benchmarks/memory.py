"""Peak memory of fitting and scoring from a store, which must not grow with the store.

`python -m benchmarks` measures three sizes in its process. For a store far larger than memory:

    python -m benchmarks.memory [--gigabytes 20] [--folder DIR]

This writes a store of random tokens, fits and scores in separate processes, prints their peak resident memory, and
deletes the store. Mapped pages count as resident; pages in the kernel's file cache do not.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from apood.detectors.ap_ood.detector import APOOD
from apood.support.errors import FitWarning
from apood.tokens.batch import TokenBatch
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter
from benchmarks.inputs import Setting
from benchmarks.record import Row
from benchmarks.timing import peak_memory

__all__ = ["measure_rows"]

_FIT_AND_SCORE = "AP-OOD fit (3 steps) and score from a store"
_DIM, _LENGTH = 1024, 512
_JOBS = {
    "import only": "store",
    "Mahalanobis fit and score": "Mahalanobis().fit(store).score_samples(store)",
    "AP-OOD fit (3 steps) and score": "APOOD(heads=32, steps=3).fit(store).score_samples(store)",
    "AP-OOD fit (3 steps), the paper's recipe": "APOOD(heads=32, steps=3, recipe='paper').fit(store)",
}
_SETUP = "from apood import APOOD, Mahalanobis, TokenStore; store = TokenStore({folder!r})"
_PEAK = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"


def measure_rows(setting: Setting) -> list[Row]:
    """Return the peak resident memory beside the size of the store, and the peak of a GPU, which may hold the store."""
    sizes, dim = ((0.002, 0.004), 64) if setting.quick else ((0.1, 0.4, 1.6), _DIM)
    found = []
    for number, gigabytes in enumerate((sizes[0], *sizes)):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # three steps are enough for measuring
            store = TokenStore(write(Path(folder) / "store", gigabytes, dim))
            with peak_memory(setting.device) as peak:
                APOOD(heads=32, queries=2, steps=3, batch_size=16, device=setting.device).fit(store).score_samples(
                    store
                )
        if number and peak.resident_mib is not None:  # the first one includes loading of libraries
            found.append(
                Row(
                    "memory", _FIT_AND_SCORE, f"{len(store)} x {_LENGTH} x {dim}", "bfloat16", "MiB",
                    peak.resident_mib, "the store", gigabytes * 1e9 / 2**20, peak_mib=peak.mib,
                )
            )  # fmt: skip
    return found


def write(folder: Path, gigabytes: float, dim: int = _DIM) -> Path:
    """Write a store of repeated random sequences, and return its folder."""
    sequences = max(1, int(gigabytes * 1e9 / (_LENGTH * dim * 2)))
    values = torch.randn(64 * _LENGTH, dim, generator=torch.Generator().manual_seed(0)).bfloat16()
    block = TokenBatch.from_lengths(values, [_LENGTH] * 64)
    with TokenStoreWriter(folder, dim=dim, dtype=torch.bfloat16) as writer:
        for first in range(0, sequences, 64):
            writer.append(block.select(slice(min(64, sequences - first))))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        started = time.monotonic()
        write(Path(folder) / "store", options.gigabytes)
        store = TokenStore(Path(folder) / "store")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"store: {len(store)} sequences x {_LENGTH} tokens x {_DIM} dimensions, bfloat16, {options.gigabytes} GB")
        print(f"written in {time.monotonic() - started:.0f} s, peak memory {peak:.2f} GiB\n")
        print("| job | peak memory, GiB | seconds |\n| --- | ---: | ---: |")
        for name, job in _JOBS.items():
            code = "\n".join([_SETUP.format(folder=str(store.folder)), job, _PEAK])
            started = time.monotonic()
            run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            print(f"| {name} | {int(run.stdout) / 2**20:.2f} | {time.monotonic() - started:.0f} |", flush=True)


if __name__ == "__main__":
    main()
