"""What the commands share that train a backbone: a folder that must be free, and a state to go on from."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from apood.cli.errors import interrupted_with
from apood.support.errors import InputError
from apood.support.files import recover_folder, refuse_unwritable

if TYPE_CHECKING:
    from apood.fitting.checkpoint import Checkpoint

__all__ = ["refuse_occupied", "training_state"]


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

    with interrupted_with(kept):
        yield checkpoint
        checkpoint.delete()
