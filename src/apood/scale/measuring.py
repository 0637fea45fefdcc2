"""Workers that measure everything: what a detector learns from beside its sample.

That is mergeable statistics of all documents, and rows of those documents that may be remembered: the ones with the
smallest keys (see `sampling`), so that it does not matter who reads which part. Both are committed as files. Statistics
of many parts are merged by workers first, in groups of consecutive parts, so that no machine reads all of them.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from safetensors.torch import load, save_file
from torch import Tensor

from apood.data.parts import Part
from apood.data.record import BadRecord, Record
from apood.detectors.contract.artefact import CONFIG_FILE, load_with_facts
from apood.detectors.contract.base import Detector
from apood.detectors.contract.data_checks import find_nonempty, refuse_nonfinite
from apood.detectors.contract.refinable import Measured, Refinable, Remembered
from apood.encoders.embed import Portion
from apood.pipeline.opening import open_encoder_of
from apood.scale.embedding import describe_documents
from apood.scale.job import Job, Settings, read_plan
from apood.scale.sampling import compute_key
from apood.scale.shards import Counts, Row, commit_file, shard_path, write_shard
from apood.scale.tries import refuse_unseen
from apood.scale.units import Unit
from apood.scale.worker import Worker
from apood.support.background import map_concurrently
from apood.support.cloud import Place, list_names, parse_place
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch
from apood.tokens.documents import make_document_mask, number_documents

__all__ = [
    "MEASURED_RECORDS",
    "MeasureWorker",
    "MergeWorker",
    "Run",
    "load_identified",
    "merge_job",
    "merge_units",
]

Run = Callable[[Job, type[Worker]], Counts]
"""Lets workers of a kind do what is left of a job, and returns the counts of all rows."""

MEASURED_RECORDS = 16_384
"""The largest number of documents of a unit: many, because a covariance may be larger than the texts."""

_GROUP = 64  # files of units that a worker merges
_FETCHED = 4  # files of units in memory while they are merged
_FILE = "measured-"
_NAME = re.compile(rf"{_FILE}\d+-\d+\.safetensors")
_SUM, _ROW = "sum.", "row."  # names in a file begin like this
_KEY = "key"
_DETECTOR = "detector"  # the hash of the one that measured
_NO_PART = ("facts", "config_sha256")  # of what a detector is: the facts have a time


def load_identified(place: Place) -> tuple[Detector, str]:
    """Return the detector at a place, and a hash of all that it has learnt."""
    path = place / CONFIG_FILE
    before = path.read_bytes() if path.exists() else b""  # loading then says what is missing
    detector, _ = load_with_facts(str(place))
    if path.read_bytes() != before:
        raise InputError(f"Another command has just replaced {place}: run the same command again.")
    config = {key: value for key, value in json.loads(before).items() if key not in _NO_PART}
    return detector, hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


class MeasureWorker(Worker):
    """Measures all documents except those left out. What is measured of a unit is committed before its rows."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        detector, self._digest = load_identified(parse_place(str(settings.detector)))
        if not isinstance(detector, Refinable):
            raise InputError(f"{detector.name} has no statistics to measure.")
        self._detector: Refinable = detector
        self.encoder = open_encoder_of(detector, settings.model)
        self._requires = detector.requires
        self._keys: dict[str, int] = {}  # of the documents of the part that may be remembered, by their places
        self._measured: Measured | None = None
        self._rows: list[Remembered] = []

    def read(self, number: int, part: Part) -> Iterator[Record | BadRecord]:
        """Yield the records of a part, and note the keys of those that may be remembered."""
        self._keys = {}
        for place, record in enumerate(super().read(number, part)):
            if (key := compute_key(self.settings.seed, number, place)) < self.settings.remembered:
                self._keys[record.place] = key
            yield record

    def make_rows(self, portion: Portion) -> list[Row]:
        """Return what was encoded of each record, and measure it."""
        encoded = [record.place for place, record in enumerate(portion.records) if place not in portion.refused]
        wanted = np.array([place not in self.settings.left_out for place in encoded], dtype=np.bool_)
        keys = np.array([self._keys.get(place, -1) for place in encoded], dtype=np.int64)
        windows = torch.from_numpy(keys[number_documents(portion.batch)])
        chosen = make_document_mask(portion.batch, wanted) & find_nonempty(portion.batch, self._requires)
        rows = describe_documents(portion)
        self._measure(portion.batch.select(chosen), windows[chosen])
        return rows

    def _measure(self, batch: TokenBatch, keys: Tensor) -> None:
        """Add sequences to what is measured of the unit, given the keys of their documents; -1 for no key.

        If anything fails, nothing is added, because the documents will then be measured again.
        """
        if not len(batch):
            return
        refuse_nonfinite(batch, self._requires, 0, "the unit")
        own = self._detector.measure(batch)
        kept = keys >= 0
        rows = self._detector.remember(batch.select(kept)) if kept.any() else {}
        self._measured = own if self._measured is None else self._detector.merge_measured(self._measured, own)
        if rows:
            self._rows.append({**rows, _KEY: keys[kept]})

    def save_more(self, unit: Unit) -> None:
        """Write what was measured of the unit."""
        measured, rows = self._measured, _join_rows(self._rows)
        self.discard()
        if measured is not None:
            _commit(self.place, unit, measured, rows, self._digest)

    def discard(self) -> None:
        """Forget what was measured of a unit that failed."""
        self._measured, self._rows = None, []


class MergeWorker(Worker):
    """Merges what was measured of consecutive units of another job, and writes it as if it were measured of one.

    A part of its job has the folder of the other job as name, and goes from one of the files there to another. At most
    about `unit_records` of the settings are remembered of it.
    """

    encodes = False

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        detector, self._digest = load_identified(parse_place(str(settings.detector)))
        self._detector = cast(Refinable, detector)  # as it was for the other job

    def process(self, number: int, part: Part) -> Counts:
        """Merge and commit, and return the counts of no rows."""
        place, unit = parse_place(part.name), Unit(number, 0, [], last=True)
        names = _list_measured(place)[part.start : part.stop]
        total, rows = _merge_files(place, names, self._detector, self._digest, self.settings.unit_records)
        refuse_unseen(self.place)
        if total is not None:
            _commit(self.place, unit, total, rows, self._digest)
        return write_shard(shard_path(self.place, unit.name), [], (), (), last=True)


def _list_measured(place: Place) -> list[str]:
    """Return the names of the files of all units, in the order of the inputs."""
    return sorted(name for name in list_names(place) if _NAME.fullmatch(name))


def _commit(place: Place, unit: Unit, measured: Measured, rows: Remembered, digest: str) -> None:
    """Write what was measured of a unit with the detector of this digest."""
    named = {_SUM + name: value for name, value in measured.items()}
    named |= {_ROW + name: value for name, value in rows.items()}
    named[_DETECTOR] = torch.tensor(list(bytes.fromhex(digest)), dtype=torch.uint8)
    with commit_file(place / f"{_FILE}{unit.name}.safetensors") as temporary:
        save_file({name: value.contiguous() for name, value in named.items()}, temporary)


def merge_job(job: Job, run: Run, detector: Refinable, digest: str, most: int) -> tuple[Measured, Remembered]:
    """Return what `merge_units` does of all units of a job; workers merge groups of them first if there are many."""
    place, count = job.place, len(_list_measured(job.place))
    if count > _GROUP:
        groups = [Part(str(place), start, min(start + _GROUP, count)) for start in range(0, count, _GROUP)]
        place /= "merged"
        merging = replace(job, parts=groups, settings=replace(job.settings, folder=str(place), unit_records=most))
        merging.begin()
        _, plan = read_plan(place)
        run(replace(merging, settings=replace(merging.settings, plan=plan)), MergeWorker)
    return merge_units(place, detector, digest, most)


def merge_units(place: Place, detector: Refinable, digest: str, most: int) -> tuple[Measured, Remembered]:
    """Return the statistics of all units, and the rows of the documents with the smallest keys, about `most` rows.

    A document has a row per window, and all of them are taken: documents are added until there are `most` rows. Units
    are merged in the order of the inputs, so that every digit is reproducible.

    Raises:
        InputError: if nothing was measured, or if a unit was measured with a detector that has not this digest.
    """
    total, rows = _merge_files(place, _list_measured(place), detector, digest, most)
    if total is None:
        raise InputError("There is nothing to learn from: no document can be used.")
    return total, {name: value for name, value in rows.items() if name != _KEY}


def _merge_files(
    place: Place, names: Sequence[str], detector: Refinable, digest: str, most: int
) -> tuple[Measured | None, Remembered]:
    """Return the statistics in files, None if there are no files, and the rows that `merge_units` takes, with keys."""
    total: Measured | None = None
    rows: list[Remembered] = []
    places = [place / name for name in names]
    for content in map_concurrently(lambda own: own.read_bytes(), places, at_once=_FETCHED):
        found = load(content)
        if bytes(found[_DETECTOR].tolist()).hex() != digest:
            raise InputError(
                f"{place} holds what was measured with another detector: two commands wrote to it at the same time. "
                "Choose another folder."
            )
        own = _select(found, _SUM)
        total = own if total is None else detector.merge_measured(total, own)
        if remembered := _select(found, _ROW):
            rows.append(remembered)
        if sum(len(one[_KEY]) for one in rows) > 2 * most:  # more need not be held
            rows = [_take_smallest(_join_rows(rows), most)]
    return total, _take_smallest(_join_rows(rows), most)


def _take_smallest(rows: Remembered, most: int) -> Remembered:
    """Return the rows of the documents with the smallest keys, as many as give `most` rows; all if there are fewer."""
    if not rows or len(rows[_KEY]) <= most:
        return rows
    largest = rows[_KEY].kthvalue(most).values  # windows of a document have the same key
    return {name: value[rows[_KEY] <= largest] for name, value in rows.items()}


def _join_rows(rows: Sequence[Remembered]) -> Remembered:
    return {name: torch.cat([own[name] for own in rows]) for name in (rows[0] if rows else ())}


def _select(found: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
