"""`apood demo`."""

from pathlib import Path
from typing import Annotated

import typer

from apood.cli.output import print_json

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the results, tables and plots.")] = Path("demo"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Use less data, for a first impression in a fraction of the time.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows of results.json.")] = False,
) -> None:
    """Compare the main methods on real texts that come with the installation, without a network.

    The methods learn what documentation looks like and then score texts of other kinds.
    """
    from rich.console import Console

    from apood.experiments.demo import run_demo

    rows = run_demo(out, quick=quick, console=Console(stderr=as_json))
    if as_json:
        print_json(rows)
