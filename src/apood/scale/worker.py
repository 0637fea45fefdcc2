"""What a worker does with a part: read, encode, make rows, commit, unit by unit."""

import itertools
import os
import platform
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch

from apood.data.parts import Part
from apood.data.record import BadRecord, Pair, Record
from apood.encoders.base.encoder import Encoder
from apood.encoders.embed import Portion, cut_portions, encode_cut, follow_encoder
from apood.scale.job import Settings, read_plan
from apood.scale.shards import Counts, Row, read_counts, shard_path, write_shard
from apood.scale.tries import Reading, Tries, refuse_unseen
from apood.scale.units import GivenUp, Unit, cut_units, read_row, read_safely
from apood.support.cloud import parse_place
from apood.support.errors import InputError
from apood.support.files import source_digest
from apood.support.version import __version__

__all__ = ["Worker"]

_PLAIN = "a text"
_DEADLY = "It was given up from here on: each worker that tried to read it died."
_UNUSABLE = "It cannot be encoded or scored: "


@dataclass
class _OpenUnit:
    """A unit that is being encoded, with the rows that its good records have so far."""

    unit: Unit
    rows: list[Row] = field(default_factory=list)
    missing: int = 0

    def __post_init__(self) -> None:
        self.missing = len(self.unit.good)

    def add(self, rows: Sequence[Row]) -> None:
        self.rows.extend(rows)
        self.missing -= len(rows)


class Worker:
    """Does the work of one process of the cluster. A subclass opens `encoder`, and makes rows of encoded records.

    With a GPU it makes the rows of one portion and commits them while the encoder runs the next one (see
    `follow_encoder`). Memory then holds two portions, as many as without a GPU, and the token ids of a third one.

    Nothing that is written depends on which worker does it, in which order, or how often, except for last digits: after
    several deaths with a unit (see `tries`), or if it fails twice, its documents are encoded one by one.

    Attributes:
        encodes: whether this kind of worker encodes, for which it has a GPU if the cluster has some.
        plan: the plan of the job, which says what a worker must find on its machine; empty without a cluster.
    """

    encodes: ClassVar[bool] = True
    columns: ClassVar[tuple[str, ...]] = ("tokens", "windows", "truncated", "note", "error")
    encoder: Encoder

    def __init__(self, settings: Settings) -> None:
        if settings.version != __version__:
            raise InputError(
                f"A machine of the cluster has apood {__version__}, and the command is of {settings.version}: install "
                "the same version everywhere."
            )
        if settings.source != source_digest(everything=True):
            raise InputError(
                f"The machine {platform.node()} has other code of apood {__version__} than the command: install the "
                "same everywhere."
            )
        if settings.on_gpu and not torch.cuda.is_available():
            raise InputError(
                f"torch cannot use the GPU of the machine {platform.node()}, and can use that of another one: install "
                "torch with CUDA on all of them."
            )
        _enter_folder(settings.cwd)
        self.settings, self.place = settings, parse_place(settings.folder)
        self.plan = {} if settings.on_gpu is None else self._read_plan()

    def _read_plan(self) -> Mapping[str, Any]:
        """Return the plan of the job; raise InputError if this machine does not see the one of the command."""
        with suppress(OSError, ValueError):
            plan, digest = read_plan(self.place)
            if digest == self.settings.plan:
                return plan
        raise InputError(
            f"The machine {platform.node()} does not see what the command wrote to {self.place}: choose a folder that "
            "all machines of the cluster share, or an address in a cloud store."
        )

    def read(self, number: int, part: Part) -> Iterator[Record | BadRecord]:  # noqa: ARG002
        """Yield the records of the part of this number."""
        return read_safely(part, self.settings.request)

    def make_rows(self, portion: Portion) -> list[Row]:
        """Return one row per record of the portion."""
        raise NotImplementedError

    def save_more(self, unit: Unit) -> None:
        """Write what the unit gives beside its rows, before these are committed."""

    def discard(self) -> None:
        """Forget what `make_rows` collected for `save_more`."""

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Process the part that a row of the plan describes; return its number and the counts of its rows."""
        return {"part": row["part"], **asdict(self.process(row["part"], read_row(row)))}

    def process(self, number: int, part: Part) -> Counts:
        """Encode and commit all units of a part that are not committed yet, and return the counts of all its rows."""
        while True:
            waiting: deque[_OpenUnit] = deque()
            try:
                return self._process(number, part, waiting)
            except Exception as error:
                self._end_if_gpu_is_lost()
                if not waiting:  # it was not a unit
                    raise
                failed, *others = [own.unit for own in waiting]
                for unit in others:  # nobody died
                    self._find_tries(unit).forget()
                self.discard()
                try:
                    self._save_good(failed, error)
                except Exception:
                    self._find_tries(failed).forget()
                    raise

    def _end_if_gpu_is_lost(self) -> None:
        """End this process if every call to its GPU fails, as after an illegal access. Ray then starts another one.

        Otherwise all documents from here on would fail. The marks stay, as after any other death.
        """
        if self.settings.on_gpu and _is_gpu_lost():
            os._exit(1)

    def _find_tries(self, unit: Unit) -> Tries:
        return Tries(self.place, self.settings.plan, unit.name)

    def _process(self, number: int, part: Part, waiting: deque[_OpenUnit]) -> Counts:
        found: list[Counts] = []  # appended to by several threads
        suspicious: list[Unit] = []

        def list_portions() -> Iterator[Sequence[Record]]:
            with Reading(self.place, self.settings.plan, number) as reading:
                for unit in self._read_units(number, part, reading, found):
                    tries = self._find_tries(unit)
                    if tries.suspicious:
                        suspicious.append(unit)
                        continue
                    reading.end()
                    tries.begin()
                    waiting.append(_OpenUnit(unit))
                    yield from cut_portions(unit.good, self.encoder)

        def commit_complete() -> None:
            while waiting and not waiting[0].missing:
                found.append(self._commit(waiting[0].unit, waiting[0].rows))
                waiting.popleft()

        def finish_portion(portion: Portion) -> None:
            commit_complete()  # units of bad records alone
            waiting[0].add(self.make_rows(portion))
            commit_complete()

        # Both end even after an error, so that no thread is at work while `_save_good` encodes.
        with (
            closing(encode_cut(list_portions(), self.encoder)) as portions,
            follow_encoder(self.encoder) as background,
        ):
            for portion in portions:
                background.start(finish_portion, portion)
        commit_complete()
        for unit in suspicious:  # when nothing else is at work that could be to blame
            found.append(self._commit(unit, self._encode_one_by_one(unit)))
        total = Counts()
        for own in found:
            total.add(own)
        return total

    def _read_units(self, number: int, part: Part, reading: Reading, found: list[Counts]) -> Iterator[Unit]:
        """Yield the units of a part that are not committed yet, and add the counts of the others to `found`.

        If reading one has killed several workers, it is a bad record, and the last one.
        """
        units = cut_units(number, self.read(number, part), self.settings.unit_records)
        for place in itertools.count():
            given_up = Unit(number, place, [GivenUp(part.name, _DEADLY)], last=True)
            path = shard_path(self.place, given_up.name)
            if path.exists():
                counts, last = read_counts(path)
                found.append(counts)
                if last:
                    return
                next(units, None)
                continue
            reading.begin(place)
            unit = given_up if reading.is_deadly(place) else next(units, None)
            if unit is None:  # the input was longer before
                return
            yield unit
            if unit.last:
                return

    def _encode_one_by_one(self, unit: Unit) -> list[Row]:
        """Return the rows of a unit that has killed several workers; a document that kills alone is an error."""
        tries = self._find_tries(unit)
        tries.begin_pass()
        rows: list[Row] = []
        for number, record in enumerate(unit.good):
            if number in tries.deadly:
                rows.append({"error": "It was given up: each worker that tried to encode or score it died."})
                continue
            tries.begin_alone(number)
            rows += self._encode_or_explain(record)
        tries.end_pass()
        self._refuse_if_all_failed(unit, rows)
        return rows

    def _encode_or_explain(self, record: Record) -> list[Row]:
        """Return the row of one document; that of its error if it cannot be used."""
        try:
            return self._encode_alone([record])
        except Exception as error:
            self._end_if_gpu_is_lost()
            return [{"error": f"{_UNUSABLE}{error}"}]

    def _save_good(self, unit: Unit, error: Exception) -> None:
        """Commit a unit that failed: portion by portion and, of one that fails again, document by document.

        A document that fails alone becomes a row with its error. If all of several fail, or if a plain text fails, too,
        it is not the documents, and the first error is raised.
        """
        rows: list[Row] = []
        for portion in cut_portions(unit.good, self.encoder):
            try:
                rows += self._encode_alone(portion)
            except Exception:
                for record in portion:
                    rows += self._encode_or_explain(record)
        self._refuse_if_all_failed(unit, rows, error)
        self._commit(unit, rows)

    def _refuse_if_all_failed(self, unit: Unit, rows: Sequence[Row], error: Exception | None = None) -> None:
        failed = [row["error"] for row in rows if str(row.get("error")).startswith(_UNUSABLE)]
        if failed and len(failed) == len(unit.good) and (len(failed) > 1 or not self._can_work(unit.good[0])):
            raise error or InputError(failed[0])

    def _can_work(self, record: Record) -> bool:
        """Return whether a plain text works in the place of a record that failed."""
        plain = Pair(_PLAIN, _PLAIN) if isinstance(record.item, Pair) else _PLAIN
        try:
            self._encode_alone([Record(plain, record.place)])
        except Exception:
            return False
        finally:
            self.discard()
        return True

    def _encode_alone(self, records: Sequence[Record]) -> list[Row]:
        (portion,) = encode_cut(iter([records]), self.encoder)
        return self.make_rows(portion)

    def _commit(self, unit: Unit, made: Sequence[Row]) -> Counts:
        rows, left = [], iter(made)
        for record in unit.records:
            own: Row = {"error": record.reason} if isinstance(record, BadRecord) else next(left)
            rows.append({"place": record.place, **record.kept, **own})
        refuse_unseen(self.place)
        self.save_more(unit)
        path, kept = shard_path(self.place, unit.name), self.settings.request.keep
        endings = {"last": unit.last, "damaged": unit.damaged, "given_up": unit.given_up}
        counts = write_shard(path, rows, self.columns, kept, **endings)
        self._find_tries(unit).forget()
        return counts


def _is_gpu_lost() -> bool:
    for _ in range(2):  # the first call may only report the error of an earlier one
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            continue
        return False
    return True


def _enter_folder(folder: str) -> None:
    """Make this process work in a folder, if this machine has it, so that relative paths mean what the command meant.

    Ray starts its processes in the folder in which the node was started.
    """
    with suppress(OSError):
        os.chdir(folder)
