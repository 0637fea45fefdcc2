"""What a command will cost: the option --dry-run, and a sentence before work of more than a minute."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from apood.cli.output import echo, print_facts, print_json

if TYPE_CHECKING:
    from apood.cli.stores import StoreFinder
    from apood.evaluation.cost import Cost

__all__ = ["FAST_ADVICE", "DryRun", "announce", "make_announcer"]

DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Only show how many texts are to be embedded and how many fits there are, and about how long both take.",
    ),
]

FAST_ADVICE = "With --fast, nothing is trained, for a first look."
"""The advice for a long fit of the default method."""


def announce(cost: "Cost", advice: str = "") -> None:
    """Print how long fits will take, and `advice`, if that is more than a minute."""
    if cost.notice is not None:
        echo(f"{cost.notice} {advice}".rstrip(), err=True)


def make_announcer(dry_run: bool, as_json: bool, stores: "StoreFinder") -> "Callable[[Cost], None]":
    """Return a function that prints the cost of fits; with `dry_run`, also of embedding, and then ends the command."""

    def announce_or_end(cost: "Cost") -> None:
        if not dry_run:
            announce(cost)
            return
        facts = {
            "texts_to_embed": stores.texts_to_embed,
            "embedding_seconds": round(stores.seconds_to_embed),
            "fits": cost.fits,
            "fit_seconds": round(cost.seconds),
        }
        print_json(facts) if as_json else print_facts(facts)
        raise typer.Exit

    return announce_or_end
