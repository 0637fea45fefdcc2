"""Every row of a table on every split, fitted and scored once and kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import apood.evaluation.result as study_results
from apood.detectors.contract.artefact import to_json
from apood.evaluation.entry import Entry as StudyEntry
from apood.evaluation.result import MEAN, Run, Spread
from apood.evaluation.split import Split
from apood.evaluation.study import run_study
from apood.evaluation.workers import Failure, attempt
from apood.experiments.paper.entries import Entry
from apood.experiments.paper.study import Study, with_tokens
from apood.experiments.paper.tasks import Mode
from apood.support.errors import InputError

__all__ = ["Result", "carry_out", "mean_auroc"]


@dataclass(frozen=True)
class Result:
    """A row of a mode's table and its runs; one that failed on some splits has no figures."""

    mode: Mode
    entry: Entry
    parameters: dict[str, Any]
    splits: list[Run]
    failures: Mapping[int, str] = field(default_factory=dict)

    @property
    def outcome(self) -> study_results.Result:
        """The same as a result of the study engine."""
        return study_results.Result(StudyEntry(self.entry.kind, name=self.entry.label), self.splits, self.failures)

    def figure(self, dataset: str, metric: str) -> Spread:
        """Return a metric on one OOD set (or `MEAN`), in percent."""
        return self.outcome.summarize(dataset, metric)

    def as_json(self) -> dict[str, Any]:
        """Return all figures as plain JSON."""
        facts = {
            "mode": self.mode,
            "row": self.entry.label,
            "method": self.entry.kind.name,
            "parameters": {name: to_json(value) for name, value in self.parameters.items()},
            "aux": self.entry.aux,
            "failures": self.outcome.failure_notes,
            "splits": [run.to_json() for run in self.splits],
        }
        if self.failures:
            return facts
        figures = {
            dataset: {metric: self.figure(dataset, metric)._asdict() for metric in ("auroc", "fpr95")}
            for dataset in self.outcome.datasets
        }
        return facts | {"results": figures}


def carry_out(study: Study, entries: Mapping[Mode, Sequence[Entry]]) -> list[Result]:
    """Return the results of all rows; one that fails stops no other, and all together are an error."""
    rows = [(mode, entry) for mode, own in entries.items() for entry in own]
    ready = [attempt(lambda row: _resolve(study, *row), row) for row in rows]
    runnable = [row for row in ready if not isinstance(row, Failure)]
    done = iter(run_study(runnable, cache=study.cache, jobs=study.jobs if study.jobs > 1 else None, what="rows"))
    results = []
    for (mode, entry), row in zip(rows, ready, strict=True):
        if isinstance(row, Failure):
            results.append(Result(mode, entry, {}, [], dict.fromkeys(range(1, study.seeds + 1), row.reason)))
        else:
            outcome = next(done)
            parameters = outcome.entry.make_detector().get_params(deep=False)
            results.append(Result(mode, entry, parameters, outcome.runs, outcome.failures))
    if results and all(result.failures for result in results):
        first = results[0]
        raise InputError(
            f"None of the {len(results)} rows could be fitted and scored; "
            f"the first: {first.entry.label} ({first.mode}), {first.outcome.failure_notes[0]}"
        )
    return results


def _resolve(study: Study, mode: Mode, entry: Entry) -> tuple[StudyEntry, list[Split]]:
    """Return the row with the settings that it takes, which may have to be chosen now, and its splits."""
    parameters = entry.detector(study, mode, 0).get_params(deep=False)
    row = StudyEntry(entry.kind, parameters, entry.label, entry.aux)
    return row, [_for_row(row, study.split(mode, number)) for number in range(study.seeds)]


def _for_row(row: StudyEntry, data: Split) -> Split:
    """Return the split; a method that reads no tokens learns nothing, and only what is scored has its channels."""
    return data if "tokens" in row.requires else replace(data, train=with_tokens(data.test))


def mean_auroc(result: Result) -> float:
    """The mean AUROC over the OOD sets and splits, in percent."""
    return result.figure(MEAN, "auroc").mean
