"""Run all speed benchmarks: `make bench`, or `PYTHONPATH=src python -m benchmarks` without an installation.

Prints a table and appends it to benchmarks/results.csv, from which RESULTS.md is rendered. With `--out`, the table goes
to `DIR/results.csv` only, for `python -m benchmarks.render DIR/results.csv` on the machine with the repository.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks import detectors, encoder_share, errors, growth, memory, pooling, reading, training
from benchmarks.inputs import Setting
from benchmarks.record import RESULTS, Record, Row, append, describe_run
from benchmarks.render import format_head, format_row, render

GROUPS: dict[str, Callable[[Setting], list[Row]]] = {
    "pool": pooling.measure_rows,
    "step": training.measure_rows,
    "fit": training.measure_fits,
    "latency": detectors.measure_latency,
    "scoring": detectors.measure_rows,
    "encoder": encoder_share.measure_rows,
    "growth": growth.measure_rows,
    "reading": reading.measure_rows,
    "memory": memory.measure_rows,
    "errors": errors.measure_rows,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the groups in turn and return the exit code; a group that fails is reported and stops no other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", choices=GROUPS, action="append", metavar="GROUP", help=f"one of {', '.join(GROUPS)}")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to check that it runs; kept only with --out")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for results.csv instead of benchmarks/")
    given = parser.parse_args(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda was asked for, but this machine has no CUDA device")
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
    place = given.out / RESULTS.name if given.out is not None else None if given.quick else RESULTS

    setting, run, failed = Setting(given.device, given.quick), describe_run(given.device), False
    print(f"{run.machine}, {run.software}, commit {run.commit or 'unknown'}\n")
    print("\n".join(format_head()), flush=True)
    for group in given.only or GROUPS:
        started = time.perf_counter()
        try:
            rows = GROUPS[group](setting)
        except Exception:
            traceback.print_exc()
            failed = True
            continue
        print("\n".join(map(format_row, rows)), flush=True)
        print(f"{group}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        if place is not None:
            append(place, (Record(run, row) for row in rows))
        if given.device == "cuda":
            torch.cuda.empty_cache()
    if place == RESULTS:
        render(RESULTS, RESULTS.with_name("RESULTS.md"))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
