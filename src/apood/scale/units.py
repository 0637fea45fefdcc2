"""Units of work: consecutive documents of a part, which one worker encodes and commits together."""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from apood.data.inputs import Request
from apood.data.parts import Part, read_part
from apood.data.record import BadRecord, Pair, Record
from apood.support.errors import InputError

__all__ = [
    "PART_BYTES",
    "UNIT_RECORDS",
    "Damage",
    "GivenUp",
    "Unit",
    "cut_units",
    "make_row",
    "read_row",
    "read_safely",
]

PART_BYTES = 4 << 20
"""About the size of a part of a file. Parts are what workers are given one after the other."""

UNIT_RECORDS = 1024
"""The largest number of documents of a unit, which is what the death of a worker costs."""

_WHOLE = -1  # in a column of whole numbers, which has no None
_CHARACTERS = 1024  # per document of a unit, on average; a unit of longer documents has fewer


@dataclass(frozen=True)
class Damage(BadRecord):
    """The place from which on a part cannot be read, because its file is damaged there."""


@dataclass(frozen=True)
class GivenUp(BadRecord):
    """The place from which on a part is not read, because each worker that tried it died."""


@dataclass(frozen=True)
class Unit:
    """Consecutive records of a part.

    Attributes:
        part: the number of the part.
        number: the number of the unit in its part.
        records: its records, good and bad ones.
        last: whether it is the last one of its part.
    """

    part: int
    number: int
    records: list[Record | BadRecord]
    last: bool

    @property
    def name(self) -> str:
        """A name that no other unit of the job has; up to a million parts, names sort in the order of the inputs."""
        return f"{self.part:06d}-{self.number:05d}"

    @property
    def damaged(self) -> bool:
        """Whether its part ends here because the input is damaged."""
        return any(isinstance(record, Damage) for record in self.records)

    @property
    def given_up(self) -> bool:
        """Whether its part ends here because reading on has killed several workers."""
        return any(isinstance(record, GivenUp) for record in self.records)

    @property
    def good(self) -> list[Record]:
        """The records that can be used."""
        return [record for record in self.records if isinstance(record, Record)]


def cut_units(part: int, records: Iterable[Record | BadRecord], most: int = UNIT_RECORDS) -> Iterator[Unit]:
    """Yield the units of a part, which depend on its records alone; one without records if it has none.

    `most` is the largest number of records of a unit.
    """
    number, characters = 0, 0
    held: list[Record | BadRecord] = []
    for record in records:
        if held and (len(held) == most or characters >= most * _CHARACTERS):
            yield Unit(part, number, held, last=False)
            number, characters, held = number + 1, 0, []
        held.append(record)
        characters += _count_characters(record)
    yield Unit(part, number, held, last=True)


def _count_characters(record: Record | BadRecord) -> int:
    if isinstance(record, BadRecord):
        return 0
    return sum(map(len, record.item)) if isinstance(record.item, Pair) else len(record.item)


def read_safely(part: Part, request: Request) -> Iterator[Record | BadRecord]:
    """Yield the records of a part. A file on a disk that is damaged from some place on ends there with a `Damage`.

    All other errors are raised, as the plain commands do. A file of another form, with other fields, or of which
    nothing can be read was probably not meant; and a disk that fails or a network is not the input's fault.
    """
    read = 0
    try:
        for record in read_part(part, request):
            read += 1
            yield record
    except InputError as error:
        is_lost = part.stop is None and not read
        if is_lost or not Path(part.name).is_file() or not _is_of_content(error.__cause__):
            raise
        yield Damage(part.name, str(error))


def _is_of_content(cause: BaseException | None) -> bool:
    """Return whether a library could not read damaged content. Errors of the operating system have a number."""
    import pyarrow

    if isinstance(cause, OSError):
        return cause.errno is None
    return isinstance(cause, EOFError | zlib.error | UnicodeDecodeError | pyarrow.ArrowException)


def make_row(number: int, part: Part) -> dict[str, Any]:
    """Return a part as a row of the plan."""
    return {"part": number, **asdict(part), "stop": _WHOLE if part.stop is None else part.stop}


def read_row(row: Mapping[str, Any]) -> Part:
    """Return the part that a row of the plan describes."""
    return Part(row["name"], row["start"], None if row["stop"] == _WHOLE else row["stop"], row["size"], row["version"])
