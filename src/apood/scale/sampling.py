"""A uniform sample of a corpus, drawn in one pass, the same for any number of workers.

Each document has a key: a hash of the seed and of its place, the number of its part and its number in it. The sample is
the documents with the smallest keys. Keys of different documents are independent and uniform, so every set of documents
is equally likely, whatever the documents hold; and since the smallest of all are the smallest of the smallest of the
parts, it does not matter who reads which part, or when. What a part contributes is committed as a shard, so that no
part is read again after an interruption.
"""

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from apood.data.parts import Part
from apood.data.record import BadRecord, Record
from apood.scale.shards import Counts, find_committed, shard_path, write_shard
from apood.scale.tries import Reading, refuse_unseen
from apood.scale.units import Damage, Unit
from apood.scale.worker import Worker
from apood.support.background import map_concurrently
from apood.support.cloud import Place

__all__ = [
    "DrawWorker",
    "Drawn",
    "choose_bound",
    "compute_key",
    "count_by_keys",
    "draw_from_records",
    "read_drawn",
    "take_smallest",
]

_MORE = 1.2  # times the documents that are wanted, to be sure that there are enough below the bound
_SPREAD = 6.0  # standard deviations of their number
_KEYS = 2**63  # what a column of signed whole numbers holds
_KEPT = ("key", "number", "text")  # columns of a shard, beside the place


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


def draw_from_records(part: int, records: Iterable[Record | BadRecord], *, seed: int, bound: int) -> Iterator[Drawn]:
    """Yield the documents of a part whose keys are below the bound. Bad records count, but are never drawn."""
    for number, record in enumerate(records):
        key = compute_key(seed, part, number)
        if key < bound and isinstance(record, Record):
            yield Drawn(key, part, number, record.place, record.item)


def take_smallest(drawn: Iterable[Drawn], wanted: int) -> list[Drawn]:
    """Return the documents with the smallest keys, smallest first; all if there are not more."""
    return heapq.nsmallest(wanted, drawn)


class DrawWorker(Worker):
    """Draws from all documents, and encodes none. A part has one unit: what it contributes to the sample.

    These are documents whose keys are below `remembered` of the settings, at most `unit_records` of a part.
    """

    encodes = False
    columns = ()

    def process(self, number: int, part: Part) -> Counts:
        """Commit what a part contributes, and return its counts. That is nothing if each worker that reads it dies."""
        damages: list[Damage] = []

        def read_and_note() -> Iterator[Record | BadRecord]:
            for record in self.read(number, part):
                if isinstance(record, Damage):
                    damages.append(record)
                yield record

        unit, settings = Unit(number, 0, [], last=True), self.settings
        with Reading(self.place, settings.plan, number) as reading:
            reading.begin(unit.number)
            given_up = reading.is_deadly(unit.number)
            records = () if given_up else read_and_note()
            found = draw_from_records(number, records, seed=settings.seed, bound=settings.remembered)
            rows = [own._asdict() for own in take_smallest(found, settings.unit_records)]
            refuse_unseen(self.place)
            path, endings = shard_path(self.place, unit.name), {"damaged": bool(damages), "given_up": given_up}
            return write_shard(path, rows, self.columns, _KEPT, last=True, **endings)


def read_drawn(place: Place) -> Iterator[Drawn]:
    """Yield all documents that workers drew, from the shards in the folder of their job."""
    import pyarrow
    import pyarrow.parquet

    paths = [(part, path) for part, own in find_committed(place).items() for path in own]
    contents = map_concurrently(lambda own: own[1].read_bytes(), paths)
    for (part, _), content in zip(paths, contents, strict=True):
        for row in pyarrow.parquet.read_table(pyarrow.BufferReader(content)).to_pylist():
            yield Drawn(int(row["key"]), part, int(row["number"]), row["place"], row["text"])
