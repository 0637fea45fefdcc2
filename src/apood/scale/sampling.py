"""A uniform sample of a corpus, drawn in one pass, the same for any number of workers.

Each document has a key: a hash of the seed and of its place, the number of its part and its number in it. The sample is
the documents with the smallest keys. Keys of different documents are independent and uniform, so every set of documents
is equally likely, whatever the documents hold; and since the smallest of all are the smallest of the smallest of the
parts, it does not matter who reads which part, or when.
"""

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from apood.data.inputs import Request
from apood.data.parts import Part
from apood.data.record import Record
from apood.scale.units import read_safely

__all__ = ["Drawn", "choose_bound", "compute_key", "count_by_keys", "draw_from_part", "draw_rows", "take_smallest"]

_MORE = 1.2  # times the documents that are wanted, to be sure that there are enough below the bound
_SPREAD = 6.0  # standard deviations of their number
_KEYS = 2**63  # what a column of signed whole numbers holds


class Drawn(NamedTuple):
    """A document of a sample, or one that may become one.

    Attributes:
        key: its key.
        part: the number of its part.
        number: its number among the records of the part.
        place: its place in words.
        text: the text.
    """

    key: int
    part: int
    number: int
    place: str
    text: str


def compute_key(seed: int, part: int, number: int) -> int:
    """Return the key of a document, uniform on the whole numbers below 2⁶³."""
    digest = hashlib.blake2b(f"{seed}:{part}:{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def choose_bound(wanted: int, documents: float) -> int:
    """Return a key below which the `wanted` smallest keys of about that many documents almost surely are.

    Documents above it need not be sent to whoever chooses. It does not change the sample: if there are too few
    documents below it, all are read again without a bound.
    """
    enough = _MORE * wanted + _SPREAD * wanted**0.5 + 16
    return _KEYS if enough >= documents else int(enough / documents * _KEYS)


def count_by_keys(drawn: Sequence[Drawn], wanted: int) -> float:
    """Return about how many documents there are, if these are the `wanted` ones with the smallest keys, or all.

    Keys are uniform, so the largest of k smallest keys is about k / N of the largest possible one.
    """
    return len(drawn) if len(drawn) < wanted else wanted / (drawn[-1].key / _KEYS)


def draw_from_part(number: int, part: Part, request: Request, *, seed: int, bound: int) -> Iterator[Drawn]:
    """Yield the documents of a part whose keys are below the bound. Bad records count, but are never drawn."""
    for place, record in enumerate(read_safely(part, request)):
        key = compute_key(seed, number, place)
        if key < bound and isinstance(record, Record):
            yield Drawn(key, number, place, record.place, record.item)


def take_smallest(drawn: Iterable[Drawn], wanted: int) -> list[Drawn]:
    """Return the documents with the smallest keys, smallest first; all if there are not more."""
    return heapq.nsmallest(wanted, drawn)


def draw_rows(number: int, part: Part, *, wanted: int, **options: Any) -> list[dict[str, Any]]:
    """Return what a part contributes to a sample, as rows that Ray can send."""
    return [own._asdict() for own in take_smallest(draw_from_part(number, part, **options), wanted)]
