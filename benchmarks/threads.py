"""The fit of the default on a busy machine: with one thread, with all, and with the number that apood chooses.

`python -m benchmarks.threads` starts a process that keeps one core busy, fits in new processes in turns, and prints the
medians. The whole work is small enough for a few minutes on 2 cores.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_FIT = """
import time, warnings
import torch
from apood import Fusion, TokenBatch

warnings.simplefilter("ignore")
generator = torch.Generator().manual_seed(0)
lengths = torch.randint(16, 64, ({sequences},), generator=generator)
tokens = torch.randn(int(lengths.sum()), {dim}, generator=generator)
begun = time.perf_counter()
Fusion(device="cpu").fit(TokenBatch.from_lengths(tokens, lengths))
print(time.perf_counter() - begun)
"""
_BUSY = "while True: pass"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=600)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=int, default=1, help="number of other processes at full load")
    given = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    choices = {"one thread": "1", f"all {cores} threads": str(cores), "chosen": None}
    seconds: dict[str, list[float]] = {name: [] for name in choices}
    with keep_busy(given.busy):
        for _ in range(given.rounds):
            for name, threads in choices.items():
                seconds[name].append(time_fit(threads, _FIT.format(sequences=given.sequences, dim=given.dim)))
    medians = {name: statistics.median(own) for name, own in seconds.items()}
    *others, chosen = medians.values()
    for name, own in seconds.items():
        print(f"{name}: {medians[name]:.1f} s ({', '.join(f'{one:.1f}' for one in own)})")
    print(f"chosen / better of the others: {chosen / min(others):.2f}")


def time_fit(threads: str | None, program: str) -> float:
    """Return the seconds of a fit in a new process."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = threads
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return float(done.stdout)


@contextmanager
def keep_busy(count: int) -> Iterator[None]:
    """Run processes at full load while the block runs."""
    others = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    time.sleep(1)
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


if __name__ == "__main__":
    main()
