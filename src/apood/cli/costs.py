"""What a command will cost: the option --dry-run, and a sentence before work of more than a minute."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from apood.cli.output import echo, print_facts, print_json

if TYPE_CHECKING:
    from apood.evaluation.cost import Cost

__all__ = ["DryRun", "make_announcer"]

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show how many fits there are, and about how long they take.")
]


def make_announcer(dry_run: bool, as_json: bool) -> "Callable[[Cost], None]":
    """Return a function that tells the cost of fits; with `dry_run` it then ends the command."""

    def announce(cost: "Cost") -> None:
        if dry_run:
            facts = {"fits": cost.fits, "seconds": round(cost.seconds)}
            print_json(facts) if as_json else print_facts(facts)
            raise typer.Exit
        if cost.notice is not None:
            echo(cost.notice, err=True)

    return announce
