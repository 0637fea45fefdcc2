"""Peak memory of fitting and scoring from a store far larger than memory.

    python -m benchmarks.memory [--gigabytes 20] [--folder DIR]

Writes a store of random tokens (they compress to nothing, and no page is shared), fits and scores in
processes of their own, prints their peak resident memory, and deletes the store. The file's pages
that the kernel caches are its own affair; what the process has mapped counts as resident.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from apood.tokens.batch import TokenBatch
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter

_DIM, _LENGTH = 1024, 512
_JOBS = {
    "import only": "store",
    "Mahalanobis fit and score": "Mahalanobis().fit(store).score_samples(store)",
    "AP-OOD fit (3 steps) and score": "APOOD(heads=32, steps=3).fit(store).score_samples(store)",
    "AP-OOD fit (3 steps), the paper's recipe": "APOOD(heads=32, steps=3, recipe='paper').fit(store)",
}
_SETUP = "from apood import APOOD, Mahalanobis, TokenStore; store = TokenStore({folder!r})"
_PEAK = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"


def write(folder: Path, gigabytes: float) -> None:
    sequences = int(gigabytes * 1e9 / (_LENGTH * _DIM * 2))
    generator = torch.Generator().manual_seed(0)
    with TokenStoreWriter(folder, dim=_DIM, dtype=torch.bfloat16) as writer:
        for first in range(0, sequences, 64):
            count = min(64, sequences - first)
            values = torch.randn(count * _LENGTH, _DIM, generator=generator, dtype=torch.bfloat16)
            writer.append(TokenBatch.from_lengths(values, [_LENGTH] * count))


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
