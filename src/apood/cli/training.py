"""What the commands that train a backbone share."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apood.cli.output import advise_on_interrupt, echo, print_facts, print_json
from apood.support.errors import InputError

if TYPE_CHECKING:
    from apood.data.record import BadRecord, Record
    from apood.fitting.optimise import Checkpoint

__all__ = ["collect_items", "open_checkpoint", "print_report"]


@contextmanager
def open_checkpoint(out: Path, seconds: float, *, resume: bool) -> "Iterator[Checkpoint]":
    """Yield the checkpoint of a training that ends in `out`, and delete it if the block ends well.

    Raise an error if it exists and `resume` is not set. On Ctrl-C, say how to continue.
    """
    from apood.fitting.optimise import Checkpoint

    checkpoint = Checkpoint(out.parent / f"{out.name}.checkpoint", seconds)
    if checkpoint.exists() and not resume:
        raise InputError(
            f"There is an unfinished training in {checkpoint.path}: add --resume to continue it, or delete it first."
        )

    def advise() -> str:
        if not checkpoint.exists():
            return "nothing was kept; run the same command again to start over."
        return f"the state is in {checkpoint.path}; add --resume to the same command to continue from there."

    with advise_on_interrupt(advise):
        yield checkpoint
        checkpoint.delete()


def collect_items(records: "Iterable[Record | BadRecord]", *, skip_bad: bool, what: str) -> tuple[list[Any], int]:
    """Return the items of the good records, and the number of bad ones, which raise an error unless `skip_bad`."""
    from apood.data.record import BadRecord

    items, skipped = [], 0
    for record in records:
        if not isinstance(record, BadRecord):
            items.append(record.item)
        elif skip_bad:
            echo(f"Skipped: {record.reason}", err=True)
            skipped += 1
        else:
            raise InputError(f"{record.reason.rstrip('.')}; add --skip-bad to skip such {what}.")
    return items, skipped


def print_report(report: dict[str, Any], skipped: int, out: Path, *, as_json: bool) -> None:
    """Print the result of a training."""
    (print_json if as_json else print_facts)(report | {"skipped": skipped, "model": str(out)})
