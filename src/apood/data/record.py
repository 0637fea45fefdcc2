"""What an input holds, one piece at a time: an item to encode, or the reason why there is none."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from apood.support.errors import InputError

__all__ = ["BadRecord", "BadRecordError", "Pair", "Record", "Skipped", "good_items"]

_SHOWN = 5


class Pair(NamedTuple):
    """A source text and the target that a model is held to."""

    source: str
    target: str


@dataclass(frozen=True)
class Record:
    """An item and where it came from, in words: "line 12 of 'a.jsonl'"."""

    item: Any
    place: str


@dataclass(frozen=True)
class BadRecord:
    """A record that cannot be used: where it is, and why as a whole sentence that names the place."""

    place: str
    reason: str


class BadRecordError(InputError):
    """A record that cannot be used, where none may be left out."""


@dataclass
class Skipped:
    """Bad records that were left out: how many, and the first few of them."""

    count: int = 0
    first: list[BadRecord] = field(default_factory=list)

    def add(self, record: BadRecord) -> None:
        """Leaves out one more."""
        self.count += 1
        if len(self.first) < _SHOWN:
            self.first.append(record)


def good_items(records: Iterator[Record | BadRecord], skipped: Skipped | None) -> Iterator[Any]:
    """What the records hold; bad ones go to `skipped`, and without it the first is an error."""
    for record in records:
        if isinstance(record, Record):
            yield record.item
        elif skipped is None:
            raise BadRecordError(record.reason)
        else:
            skipped.add(record)
