"""Run the attacks on apood, and print what happened: `python tests/breaking/run.py --help`."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from cli_calls import break_cli
from mutations import break_files
from races import break_saves

ATTACKS = {
    "cli": (break_cli, 120, 5000),
    "files": (break_files, 150, 1000),
    "saves": (break_saves, 300, 20_000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", action="store_true", help="the number of cases for a release")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=ATTACKS)
    parser.add_argument("--count", type=int)
    options = parser.parse_args()
    failed = False
    for name, (attack, short, long) in ATTACKS.items():
        if options.only in (None, name):
            begun = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                tally = attack(options.count or (long if options.long else short), options.seed, Path(folder))
            print(f"{name}: {tally} ({time.monotonic() - begun:.0f} s)", flush=True)
            for failure in tally.failures[:200]:
                print(f"  {failure}", flush=True)
            failed = failed or bool(tally.failures)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
