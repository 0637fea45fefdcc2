"""Run the attacks on apood in their long form, and print what happened: `python tests/breaking/run.py`.

An attack makes random damage from a seed, and counts what came of it. It fails if anything broke.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cli_calls import break_cli
from kills import break_commands
from limits import break_limits
from mutations import break_files
from races import break_saves
from repeats import break_promises
from workshop import Tally


class Attack(NamedTuple):
    """A function of the number of cases, a seed and a folder; and the number of cases for a test and for a release."""

    function: Callable[[int, int, Path], Tally]
    short: int
    long: int


ATTACKS = {
    "cli": Attack(break_cli, 40, 5_000),
    "files": Attack(break_files, 60, 1_000),
    "saves": Attack(break_saves, 150, 20_000),
    "repeats": Attack(break_promises, 5, 1_000),
    "limits": Attack(break_limits, 8, 400),
    "kills": Attack(break_commands, 6, 200),
}


def main() -> None:
    """Run all attacks, or one, and exit with 1 if anything broke."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", choices=ATTACKS, help="run one attack")
    parser.add_argument("--count", type=int, help="the number of cases, instead of that for a release")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failed = False
    for name in [options.only] if options.only else ATTACKS:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            tally = ATTACKS[name].function(options.count or ATTACKS[name].long, options.seed, Path(folder))
        print(f"{name}: {tally} ({time.monotonic() - begun:.0f} s)", *tally.failures[:200], sep="\n  ", flush=True)
        failed = failed or bool(tally.failures)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
