"""Run the attacks on apood in their long form, and print what happened: `python tests/breaking/run.py --jobs 16`.

An attack makes random damage from a seed, and counts what came of it. It fails if anything broke. It is divided into
parts, each with its own seed. The division does not depend on the number of processes, so neither do the cases.
"""

import argparse
import json
import multiprocessing
import os
import platform
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from cli_calls import break_cli
from kills import VARIANTS as COMMANDS
from kills import break_commands
from limits import break_limits
from mutations import break_files
from races import break_saves
from repeats import VARIANTS, break_promises
from workshop import Tally

_PACKAGES = ("torch", "transformers", "datasets", "fastapi", "soundfile", "pyarrow", "jinja2", "matplotlib")


class Attack(NamedTuple):
    """What is attacked, and how often.

    Attributes:
        function: takes a number of cases, a seed, a folder and a variant, and returns what happened.
        short: the number of cases for a test.
        long: the number of cases for a release.
        at_once: the most cases of one part.
        variants: each gets this number of cases.
        tested: the number of variants in a test, drawn at random; None for all.
    """

    function: Callable[..., Tally]
    short: int
    long: int
    at_once: int
    variants: tuple[tuple[Any, ...], ...] = ((),)
    tested: int | None = None


class Part(NamedTuple):
    """A part of an attack, with everything that decides its cases."""

    attack: str
    variant: tuple[Any, ...]
    count: int
    seed: int


ATTACKS = {
    "kills": Attack(break_commands, 1, 11, 11, COMMANDS, tested=5),
    "repeats": Attack(break_promises, 5, 1_000, 1_000, VARIANTS),
    "cli": Attack(break_cli, 40, 5_000, 100),
    "limits": Attack(break_limits, 8, 400, 25),
    "saves": Attack(break_saves, 150, 20_000, 1_250),
    "files": Attack(break_files, 60, 1_000, 50),
}
"""The attacks, beginning with those whose parts take longest, so that no process is left alone at the end."""


def divide(name: str, count: int, seed: int) -> list[Part]:
    """Return the parts of an attack of `count` cases of each variant."""
    attack = ATTACKS[name]
    sizes = [min(attack.at_once, count - begin) for begin in range(0, count, attack.at_once)]
    return [
        Part(name, variant, size, seed * 10_000 + number)
        for variant in attack.variants
        for number, size in enumerate(sizes)
    ]


def divide_short(name: str, seed: int = 0) -> list[Part]:
    """Return the parts of an attack in its form for a test."""
    attack = ATTACKS[name]
    parts = divide(name, attack.short, seed)
    return parts if attack.tested is None else random.Random(seed).sample(parts, attack.tested)


def run_part(part: Part) -> tuple[Tally, float]:
    """Run a part in a new folder, and return what happened, and the seconds."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="breaking-") as folder:
        tally = ATTACKS[part.attack].function(part.count, part.seed, Path(folder), *part.variant)
    return tally, time.monotonic() - begun


def run_parts(parts: list[Part], jobs: int) -> dict[str, tuple[Tally, float]]:
    """Run all parts in `jobs` processes, and return for each attack what happened, and the seconds of all its parts."""
    found: dict[str, tuple[Tally, float]] = defaultdict(lambda: (Tally(), 0.0))
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(run_part, part): part for part in parts}
        for number, future in enumerate(as_completed(running)):
            part = running[future]
            try:
                tally, seconds = future.result()
            except Exception as error:  # the attack itself failed: the others go on
                tally, seconds = Tally(), 0.0
                tally.note("failed parts", f"{part}: {type(error).__name__}: {error}")
            whole, before = found[part.attack]
            found[part.attack] = whole + tally, before + seconds
            print(f"{number + 1}/{len(parts)} {part}: {tally} ({seconds:.0f} s)", *tally.failures[:20], sep="\n  ",
                  flush=True)  # fmt: skip
    return {name: found[name] for name in ATTACKS if name in found}


def format_summary(found: dict[str, tuple[Tally, float]], seed: int, jobs: int, seconds: float) -> str:
    """Return a Markdown page of what happened."""
    versions = ", ".join(f"{name} {_find_version(name)}" for name in _PACKAGES)
    lines = [
        f"Seed {seed}, {jobs} processes, {seconds:.0f} s; Python {platform.python_version()}; {versions}.",
        "",
        "| attack | what happened | failures | seconds of all processes |",
        "| --- | --- | --- | --- |",
        *(f"| {name} | {tally} | {len(tally.failures)} | {used:.0f} |" for name, (tally, used) in found.items()),
    ]
    return "\n".join(lines) + "\n"


def _find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def main() -> None:
    """Run all attacks, or some, and exit with 1 if anything broke."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", choices=ATTACKS, action="append", help="run this attack; may be repeated")
    parser.add_argument(
        "--count",
        type=int,
        help="the number of cases instead of that for a release; of each command or method, if there are several",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="the number of processes")
    parser.add_argument("--out", type=Path, help="folder to write summary.md and summary.json to")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes, which are started below
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a process that was forked cannot use a GPU
    begun = time.monotonic()
    names = options.only or list(ATTACKS)
    parts = [part for name in names for part in divide(name, options.count or ATTACKS[name].long, options.seed)]
    found = run_parts(parts, options.jobs)
    summary = format_summary(found, options.seed, options.jobs, time.monotonic() - begun)
    print(f"\n{summary}")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "summary.md").write_text(summary, encoding="utf-8")
        content = {name: {"counts": tally.counts, "failures": tally.failures} for name, (tally, _) in found.items()}
        (options.out / "summary.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    sys.exit(int(any(tally.failures for tally, _ in found.values())))


if __name__ == "__main__":
    main()
