"""How often workers have tried a unit, so that a document that kills its worker is not tried for ever.

A worker that dies cannot say why. So it makes a mark before it begins, in a file beside the shards, and the file is
deleted when the unit is committed. If several workers have died, the next one encodes the documents of the unit one by
one, with a mark before each and one after the last. If such a pass ends with the mark of a document, the worker died
with it.

What is read can kill, too, for example a damaged file by a bug in the library that reads it. A worker reads while it
encodes what it has read before, so that its death may have either reason. But until it begins with the first unit that
is still to do, it only reads. For this time, a part has marks of its own: the number of each unit before it is read.
"""

import hashlib
import platform
from collections import Counter
from pathlib import Path
from typing import Self

from apood.support.cloud import Place
from apood.support.errors import InputError
from apood.support.files import find_user_cache

__all__ = ["PATIENCE", "PATIENCE_ALONE", "Reading", "Tries", "delete_marks", "refuse_unseen"]

PATIENCE = 4
"""Workers that may die before the documents of a unit are encoded one by one, or before a unit is no longer read.

It is more than chance would kill, because a document alone may have other last digits than among others.
"""

PATIENCE_ALONE = 2
"""Workers that may die with a document alone before it is given up: one death may have any other reason."""

_NAME = "_tries-"  # readers of Parquet folders skip names that begin like this
_BEGUN, _PASS, _END = "-", "+", "."


class Tries:
    """The marks of a unit that is not committed yet, or of a part.

    Attributes:
        count: how often the documents of the unit were begun together.
        deaths: how often a pass ended with each number, because the worker died then.
        deadly: the numbers of the documents that are given up, because workers died with each of them alone.
    """

    def __init__(self, place: Place, plan: str, name: str) -> None:
        prefix = _find_prefix(place, plan)
        self._place, self._path = place, prefix.with_name(prefix.name + name)
        marks = self._path.read_text() if self._path.exists() else ""
        self.count = marks.count(_BEGUN)
        last = [own.split()[-1] for own in marks.split(_PASS)[1:] if own.split()]
        self.deaths = Counter(int(mark) for mark in last if mark.isdecimal())
        self.deadly = {number for number, count in self.deaths.items() if count >= PATIENCE_ALONE}

    @property
    def suspicious(self) -> bool:
        """Whether so many workers have died that documents are to be encoded one by one."""
        return self.count >= PATIENCE

    def begin(self) -> None:
        """Note that all documents are begun together."""
        self._mark(_BEGUN)

    def begin_pass(self) -> None:
        """Note that the documents will be begun one by one, or that the part will be read."""
        self._mark(_PASS)

    def begin_alone(self, number: int) -> None:
        """Note that the document of this number is begun, or that the unit of this number will be read."""
        self._mark(str(number))

    def end_pass(self) -> None:
        """Note that no document of the pass killed: what happens from here on is none's fault."""
        self._mark(_END)

    def _mark(self, mark: str) -> None:
        refuse_unseen(self._place)
        if not isinstance(self._place, Path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:  # what is written outlives the process, if not the machine
            file.write(f"{mark}\n")

    def forget(self) -> None:
        """Delete the marks, because the unit is committed, or because it failed and nobody died."""
        self._path.unlink(missing_ok=True)


class Reading:
    """The marks of a part while nothing is done but reading it; use it in a `with` block.

    They are deleted when other work begins, and at the end of the block unless the process dies.
    """

    def __init__(self, place: Place, plan: str, part: int) -> None:
        self._tries: Tries | None = Tries(place, plan, f"{part:06d}")

    def __enter__(self) -> Self:
        if self._tries is not None:
            self._tries.begin_pass()
        return self

    def is_deadly(self, unit: int) -> bool:
        """Return whether so many workers died when they read the unit of this number that it is given up."""
        return self._tries is not None and self._tries.deaths[unit] >= PATIENCE

    def begin(self, unit: int) -> None:
        """Note that the unit of this number will be read."""
        if self._tries is not None:
            self._tries.begin_alone(unit)

    def end(self) -> None:
        """Delete the marks, because other work begins, or because nobody died."""
        if self._tries is not None:
            self._tries.forget()
        self._tries = None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self.end()


def refuse_unseen(place: Place) -> None:
    """Raise InputError if this machine does not see the folder of a job. It makes none: nobody else would see that."""
    if isinstance(place, Path) and not place.is_dir():
        raise InputError(f"The machine {platform.node()} does not see {place}, which all machines of a cluster share.")


def delete_marks(place: Place, plan: str) -> None:
    """Delete all marks of a job that this machine sees: those of workers that were killed after they had committed."""
    prefix = _find_prefix(place, plan)
    for path in prefix.parent.glob(f"{prefix.name}*"):
        path.unlink(missing_ok=True)


def _find_prefix(place: Place, plan: str) -> Path:
    """Return how the paths of a job's marks begin, given a hash of its plan.

    Nothing is deleted in a cloud store, so each machine has its own marks then. Their names depend on the plan, because
    another job may have the same address later.
    """
    if isinstance(place, Path):
        return place / _NAME
    job = hashlib.sha256(f"{place}\n{plan}".encode()).hexdigest()[:16]
    return find_user_cache("tries") / f"{_NAME}{job}-"
