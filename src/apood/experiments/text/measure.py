"""Measures all rows of a task in one view, as one study, and writes a result for each."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from apood.evaluation.entry import Entry
from apood.evaluation.result import Result
from apood.evaluation.split import Split
from apood.evaluation.study import run_study
from apood.experiments.text.results import (
    SCHEMA,
    MethodResult,
    compute_figures,
    find_result,
    make_key,
    read_result,
    write_result,
)
from apood.experiments.text.rows import Rows, depends_on_view, list_rows
from apood.experiments.text.tasks import Task, embed_sets, name_view, open_sets
from apood.experiments.text.texts import AUX, OOD, SPLICED, TEST, TRAIN, VALIDATION, CorpusSets, draw_order
from apood.support.device import resolve_device
from apood.support.errors import InputError
from apood.support.provenance import device_name, package_versions
from apood.tokens.source import Subset
from apood.tokens.store import StoreIndex, TokenStore

__all__ = ["Assignment", "Measured", "Measurer"]


class Assignment(NamedTuple):
    """A task in a view with its texts, as it is sent to a process."""

    task: Task
    sets: CorpusSets

    def __str__(self) -> str:
        return str(self.task)


class Measured(NamedTuple):
    """The results of an assignment.

    Attributes:
        written: the results files, also those of an earlier run.
        failures: one sentence per row that failed.
    """

    written: list[Path]
    failures: list[str]


@dataclass(frozen=True)
class Measurer:
    """Measures assignments, one after another; each process has one.

    Attributes:
        chosen: the rows.
        with_aux: whether rows that learn from AUX texts are run.
        seeds: the number of seeds.
        salt: the salt of the declaration.
        out: the folder for stores, fits and results.
        command: the command line, for the manifest.
        fresh: whether fits and results of earlier runs are left alone, and only stores are reused.
    """

    chosen: Rows
    with_aux: bool
    seeds: int
    salt: str
    out: Path
    command: str
    fresh: bool = False

    def __call__(self, assignment: Assignment) -> Measured:
        """Embed, fit and score what is missing, and write the results."""
        task, sets = assignment
        study = _StudyData(task, sets, embed_sets(task, sets, self.out), self.seeds, self.salt)
        rows = self.list_rows(study)
        described = study.describe()
        waiting = [row for row in rows if not self._is_done(task, row, described)]
        measured = Measured([self.find_result(task, row) for row in rows if row not in waiting], [])
        for result, content, means in self.measure(study, waiting):
            if result.failures:
                measured.failures.extend(f"{task}: {result.entry.label}, {note}" for note in result.failure_notes)
                continue
            path = self.find_result(task, result.entry)
            write_result(path, content, result, means)
            measured.written.append(path)
        if not measured.failures:
            shutil.rmtree(self._find_cache(task), ignore_errors=True)  # results are kept, and fits are large
        return measured

    def _find_cache(self, task: Task) -> Path:
        return self.out / "cache" / task.file_name

    def measure_again(self, assignment: Assignment, label: str) -> MethodResult:
        """Return the result that the file of a row should have; nothing but stores is written."""
        task, sets = assignment
        study = _StudyData(task, sets, embed_sets(task, sets, self.out), self.seeds, self.salt)
        rows = [row for row in self.list_rows(study) if row.label == label]
        if not rows:
            raise InputError(f"There is no row {label!r} on {task} to measure again.")
        ((result, content, means),) = self.measure(study, rows)
        if result.failures:
            raise InputError(f"{label} on {task} could not be measured again: {result.failure_notes[0]}")
        return MethodResult(self.find_result(task, result.entry), content, means)

    def find_result(self, task: Task, row: Entry) -> Path:
        """Return the file of the result of a row."""
        return find_result(self.out, task.name, task.view_folder, row.label)

    def list_rows(self, study: "_StudyData") -> list[Entry]:
        """Return all rows of a task in its view."""
        task, aux = study.task, study.aux_count if self.with_aux else 0
        return list_rows(self.chosen, study.channels, aux, first_view=task.first_view)

    def _is_done(self, task: Task, row: Entry, described: Mapping[str, Any]) -> bool:
        try:
            return bool(read_result(self.find_result(task, row)).content["key"] == make_key(row, described))
        except (InputError, KeyError):
            return False

    def measure(self, study: "_StudyData", rows: Sequence[Entry]) -> list[tuple[Result, dict[str, Any], Any]]:
        """Return the result, the content of its file, and the resampled means of every row."""
        if not rows:
            return []
        entries = [(row, study.splits_for(row)) for row in rows]
        cache = None if self.fresh else self._find_cache(study.task)
        results = run_study(entries, cache=cache, tabulate=False, what="rows")
        found = []
        described = study.describe()
        for result, (_, splits) in zip(results, entries, strict=True):
            figures: dict[str, Any] = {}
            means: dict[str, Any] = {}
            resampled: Any = {}
            if not result.failures:
                lengths = {"test": splits[0].test.lengths.numpy()}
                lengths |= {name: own.lengths.numpy() for name, own in splits[0].ood.items()}
                figures, means, resampled = compute_figures(result, study.kinds, lengths)
            content = {
                "schema": SCHEMA,
                "key": make_key(result.entry, described),
                "task": study.task_facts,
                "method": _describe_method(result.entry),
                "figures": figures,
                "means": means,
                "accepted": None if result.accepted is None else result.accepted.mean,
                "costs": _describe_costs(result),
                "warnings": list(dict.fromkeys(warning for run in result.runs for warning in run.warnings)),
                "manifest": {
                    **described,
                    "removed": {name: dict(own) for name, own in study.sets.removed.items()},
                    "versions": package_versions(),
                    "device": device_name(),
                    "command": self.command,
                    "finished": datetime.now(UTC).isoformat(timespec="seconds"),
                },
            }
            found.append((result, content, resampled))
        return found


def _describe_method(entry: Entry) -> dict[str, Any]:
    kind = entry.kind
    return {
        "label": entry.label,
        "method": entry.method if isinstance(entry.method, str) else f"{kind.__module__}:{kind.__qualname__}",
        "parameters": dict(entry.parameters),
        "aux": entry.aux,
        "depends_on_view": depends_on_view(entry),
    }


def _describe_costs(result: Result) -> dict[str, float]:
    if result.failures:
        return {}
    return {
        "fit_seconds": round(result.fit_seconds, 4),
        "score_seconds_per_1000": round(result.seconds_per_thousand, 4),
        "artefact_bytes": result.artefact_bytes,
    }


class _StudyData:
    """The token stores of a task in one view, and the splits of its rows."""

    def __init__(self, task: Task, sets: CorpusSets, stores: Mapping[str, Path], seeds: int, salt: str) -> None:
        self.task, self.sets, self.stores, self.seeds, self.salt = task, sets, stores, seeds, salt
        names = {role: role.removeprefix(OOD) for role in sets.items if role.startswith((OOD, SPLICED))}
        self.kinds = {
            role: "spliced" if role.startswith(SPLICED) else task.corpus.kinds[name] for role, name in names.items()
        }
        self._splits: dict[tuple[frozenset[str], bool], list[Split]] = {}

    @cached_property
    def channels(self) -> tuple[str, ...]:
        """The channels that all stores have; `sentences` only if there is something to learn from them."""
        unused = () if self.sets.has_sentences else ("sentences",)
        first, *others = (StoreIndex.read(folder).channels for folder in self.stores.values())
        return tuple(name for name in first if name not in unused and all(name in other for other in others))

    @property
    def aux_count(self) -> int:
        """The number of AUX texts that have tokens."""
        return int((TokenStore(self.stores[AUX], channels=()).lengths > 0).sum()) if AUX in self.stores else 0

    def splits_for(self, row: Entry) -> list[Split]:
        """Return a split per seed; those of rows with AUX texts differ in the AUX texts that are drawn first."""
        channels = row.reads.intersection(self.channels) - {"tokens"}
        if (channels, False) not in self._splits:
            sources = open_sets(self.stores, channels, resolve_device())
            alone = self._make_splits(sources)
            self._splits[channels, False] = alone
            if AUX in sources:
                self._splits[channels, True] = [self._draw_aux(split, sources[AUX]) for split in alone]
        return self._splits[channels, row.uses_aux]

    def _make_splits(self, sources: Mapping[str, Subset]) -> list[Split]:
        ood = {role: sources[role] for role in self.kinds}
        return [
            Split(sources[TRAIN], sources[TEST], ood, validation=sources[VALIDATION], seed=seed)
            for seed in range(self.seeds)
        ]

    def _draw_aux(self, split: Split, source: Subset) -> Split:
        places = {int(number): place for place, number in enumerate(source.indices)}
        order = draw_order(self.sets.items[AUX], self.salt, split.seed)
        chosen = [places[number] for number in order if number in places]
        return replace(split, aux=Subset(source, torch.tensor(chosen)))

    @property
    def task_facts(self) -> dict[str, Any]:
        """What the task is."""
        task = self.task
        return {
            "name": task.name,
            "model": task.model.name,
            "mode": task.mode,
            "corpus": task.corpus.name,
            "status": task.corpus.status,
            "view": task.view_name,
            "views": [name_view(view) for view in task.views],
        }

    def describe(self) -> dict[str, Any]:
        """Return what the figures depend on beside the method: texts, encoder, seeds and code."""
        store = TokenStore(self.stores[TRAIN], channels=())
        encoder = {key: value for key, value in (store.encoder or {}).items() if key != "folder"}
        return {
            "texts": dict(self.sets.digests),
            "encoder": encoder,
            "model": self.task.model.identity,
            "seeds": self.seeds,
            "source": package_versions()["source"],
        }
