"""`apood bench`: experiments with a known outcome."""

from pathlib import Path
from typing import Annotated

import typer

from apood.cli.output import print_facts, print_json

__all__ = ["bench"]

bench = typer.Typer(help="Runs an experiment of the paper.", no_args_is_help=False)


@bench.callback()
def _bench() -> None:
    """Runs an experiment of the paper."""


@bench.command(epilog="Example: apood bench toy --out toy")
def toy(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the figures and results.json.")] = Path("toy"),
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the data and of the training.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the content of results.json.")] = False,
) -> None:
    """The toy experiment: averaging hides an anomaly that attention finds (figures 1 and 2 of the paper)."""
    from apood.experiments.toy import run_toy

    results = run_toy(out, seed)
    if as_json:
        print_json(results)
    else:
        print_facts(results | {"written to": out})
