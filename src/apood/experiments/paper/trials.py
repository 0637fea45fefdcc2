"""Every row of a table on every split, fitted and scored once and kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

from apood.detectors.contract.artefact import to_json
from apood.detectors.contract.base import Detector
from apood.evaluation.comparison import SplitResult, Spread, split_result
from apood.evaluation.rows import MEAN
from apood.evaluation.splits import SplitData
from apood.evaluation.workers import Failure, attempt, outcomes, share_cores
from apood.experiments.paper.entries import Entry
from apood.experiments.paper.study import Study, with_tokens
from apood.experiments.paper.tasks import Mode
from apood.support.errors import InputError
from apood.tokens.source import Subset

__all__ = ["Result", "carry_out", "mean_auroc"]


@dataclass(frozen=True)
class Result:
    """A row of a mode's table and what came of it on each split; one that failed on some has no figures."""

    mode: Mode
    entry: Entry
    parameters: dict[str, Any]
    splits: list[SplitResult]
    failures: list[str] = field(default_factory=list)

    def figure(self, dataset: str, metric: str) -> Spread:
        """A metric on one OOD set (or `MEAN`), in percent."""
        rows = [row for split in self.splits for row in split.rows if row["dataset"] == dataset]
        return Spread.of([cast(float, dict(row)[metric]) for row in rows])

    def as_json(self) -> dict[str, Any]:
        """All figures as plain JSON."""
        facts = {
            "mode": self.mode,
            "row": self.entry.label,
            "method": self.entry.kind.name,
            "parameters": {name: to_json(value) for name, value in self.parameters.items()},
            "aux": self.entry.aux,
            "failures": self.failures,
            "splits": [vars(split) for split in self.splits],
        }
        if self.failures:
            return facts
        datasets = dict.fromkeys(row["dataset"] for split in self.splits for row in split.rows)
        figures = {
            dataset: {metric: self.figure(dataset, metric)._asdict() for metric in ("auroc", "fpr95")}
            for dataset in datasets
        }
        return facts | {"results": figures}


class _Trial(NamedTuple):
    """One row on one split, with all that a process of its own needs for it."""

    mode: Mode
    entry: Entry
    number: int
    detector: Detector
    data: SplitData
    cache: Path

    def __str__(self) -> str:
        return f"{self.mode}: {self.entry.label}, split {self.number + 1}"


def carry_out(study: Study, entries: Mapping[Mode, Sequence[Entry]]) -> list[Result]:
    """The results of all rows; one that cannot be fitted or scored stops no other, and all together are an error."""
    rows = [(mode, entry) for mode, own in entries.items() for entry in own]
    wanted = [(mode, entry, number) for mode, entry in rows for number in range(study.seeds)]
    trials = [attempt(lambda one: _trial(study, *one), one) for one in wanted]
    ready = [trial for trial in trials if isinstance(trial, _Trial)]
    share = share_cores(len(ready), study.jobs) if study.jobs > 1 else None
    done = iter(outcomes(_split_result, ready, share, "fit", str))
    found = [next(done) if isinstance(trial, _Trial) else trial for trial in trials]
    results = [
        _result(study, mode, entry, found[row * study.seeds :][: study.seeds]) for row, (mode, entry) in enumerate(rows)
    ]
    if results and all(result.failures for result in results):
        first = results[0]
        raise InputError(
            f"None of the {len(results)} rows could be fitted and scored; "
            f"the first: {first.entry.label} ({first.mode}), {first.failures[0]}"
        )
    return results


def _trial(study: Study, mode: Mode, entry: Entry, number: int) -> _Trial:
    """With the settings that the row takes, which may have to be chosen now."""
    detector = entry.detector(study, mode, number)
    data = study.split(mode, number, sorted(detector.requires - {"tokens"}))
    return _Trial(mode, entry, number, detector, data, study.cache)


def _result(study: Study, mode: Mode, entry: Entry, own: Sequence[SplitResult | Failure]) -> Result:
    failures = [
        f"split {number}: {outcome.reason}"
        for number, outcome in enumerate(own, start=1)
        if isinstance(outcome, Failure)
    ]
    done = [outcome for outcome in own if isinstance(outcome, SplitResult)]
    parameters = entry.detector(study, mode, 0).get_params(deep=False) if done else {}
    return Result(mode, entry, parameters, done, failures)


def _split_result(trial: _Trial) -> SplitResult:
    _, entry, number, detector, data, cache = trial
    aux = None
    if entry.aux:
        assert data.aux is not None, "rows with AUX are asked for where there are some"
        aux = Subset(data.aux, slice(entry.aux))
    # what looks at no tokens learns nothing, and samples are drawn for what is scored alone
    train = data.train if "tokens" in detector.requires else with_tokens(data.test)
    return split_result(entry.label, number, detector, data._replace(train=train, aux=aux), cache)


def mean_auroc(result: Result) -> float:
    """The mean AUROC over the OOD sets and splits, in percent."""
    return result.figure(MEAN, "auroc").mean
