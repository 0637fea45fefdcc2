"""What the commands share that train a backbone: a folder that must be free, and a state to go on from."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from apood.cli.output import advise_on_interrupt, print_facts, print_json
from apood.support.errors import InputError
from apood.support.files import recover_folder, refuse_unwritable

if TYPE_CHECKING:
    from apood.fitting.checkpoint import Checkpoint

__all__ = ["leave_out", "refuse_occupied", "tell_trained", "training_state"]


def refuse_occupied(out: Path) -> None:
    """Refuses a folder that a trained model cannot be written to, before any work."""
    recover_folder(out)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(f"There is already something in {out}: choose another folder, or delete it first.")
    refuse_unwritable(out)


@contextmanager
def training_state(out: Path, seconds: float, *, resume: bool) -> "Iterator[Checkpoint]":
    """Where the state of a training is kept that ends in `out`; it is deleted when the block ends well.

    A state that is there already is refused without `resume`. On Ctrl-C the block says how to go on.
    """
    from apood.fitting.checkpoint import Checkpoint

    checkpoint = Checkpoint(out.parent / f"{out.name}.checkpoint", seconds)
    if checkpoint.exists() and not resume:
        raise InputError(
            f"There is an unfinished training in {checkpoint.path}: add --resume to go on with it, or delete it first."
        )

    def kept() -> str:
        if not checkpoint.exists():
            return "nothing was kept; run the same command again to start anew."
        return f"the state is in {checkpoint.path}; add --resume to the same command to go on from there."

    with advise_on_interrupt(kept):
        yield checkpoint
        checkpoint.delete()


def leave_out(reason: str, what: str, *, skip_bad: bool) -> None:
    """Says why a record is skipped, or refuses it."""
    if not skip_bad:
        raise InputError(f"{reason.rstrip('.')}; add --skip-bad to leave such {what} out.")
    typer.echo(f"Skipped: {reason}", err=True)


def tell_trained(report: dict[str, Any], skipped: int, out: Path, *, as_json: bool) -> None:
    """Prints what was trained."""
    report = report | {"skipped": skipped, "model": str(out)}
    if as_json:
        print_json(report)
    else:
        print_facts(report)
