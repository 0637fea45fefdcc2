"""How often workers have tried a unit, so that a document that kills its worker is not tried for ever.

A worker that dies cannot say why. So it makes a mark before it begins, in a file beside the shards, and the file is
deleted when the unit is committed. If several workers have died, the next one encodes the documents of the unit one by
one, with a mark before each: the document of the last mark is then the one that kills.
"""

import hashlib
import tempfile
from pathlib import Path

from apood.scale.units import Unit
from apood.support.cloud import Place

__all__ = ["PATIENCE", "Tries", "delete_marks"]

PATIENCE = 4
"""Workers that may die before the documents of a unit are encoded one by one.

It is more than chance would kill, because a document alone may have other last digits than among others.
"""

_NAME = "_tries-"  # readers of Parquet folders skip names that begin like this
_BEGUN = "-"


class Tries:
    """The marks of a unit that is not committed yet.

    Attributes:
        count: how often its documents were begun together.
        deadly: the numbers of the documents that were begun alone, and not finished: each killed its worker.
    """

    def __init__(self, folder: Place, unit: Unit) -> None:
        self._path = _find_folder(folder) / f"{_NAME}{unit.name}"
        marks = self._path.read_text().split() if self._path.exists() else []
        self.count = marks.count(_BEGUN)
        alone = [int(mark) for mark in marks if mark != _BEGUN]
        self.deadly = {number for number, after in zip(alone, [*alone, -1][1:], strict=True) if after <= number}

    @property
    def suspicious(self) -> bool:
        """Whether so many workers have died that documents are to be encoded one by one."""
        return self.count >= PATIENCE

    def mark(self, document: int | None = None) -> None:
        """Note that all documents are begun, or the one of this number."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:  # what is written outlives the process, if not the machine
            file.write(f"{_BEGUN if document is None else document}\n")

    def forget(self) -> None:
        """Delete the marks, because the unit is committed."""
        self._path.unlink(missing_ok=True)


def delete_marks(folder: Place) -> None:
    """Delete all marks of a job: those of workers that were killed after they had committed."""
    for path in _find_folder(folder).glob(f"{_NAME}*"):
        path.unlink(missing_ok=True)


def _find_folder(folder: Place) -> Path:
    """Return where the marks of a job are. Nothing is deleted in a cloud store, so each machine has its own then."""
    if isinstance(folder, Path):
        return folder
    return Path(tempfile.gettempdir(), f"apood{_NAME}{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}")
