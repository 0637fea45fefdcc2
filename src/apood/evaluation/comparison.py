"""Carries out a plan: every method on every split, and what came of it."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple, cast

import numpy as np

from apood.decisions.conformal import conformal_threshold
from apood.detectors.contract.artefact import to_json
from apood.detectors.contract.base import Detector, Scores
from apood.evaluation.plan import ACCEPT, Method, Plan, checked
from apood.evaluation.rows import MEAN, ResultRow, mean_row, result_rows
from apood.evaluation.runs import run
from apood.evaluation.splits import SplitData, split_data
from apood.evaluation.workers import Failure, outcomes, share_cores
from apood.support.checks import check_integer
from apood.support.errors import InputError
from apood.support.version import __version__

__all__ = ["METRICS", "Comparison", "Contender", "SplitResult", "Spread", "compare", "split_result"]

METRICS = ("auroc", "fpr95", "aupr_id", "aupr_ood")


class Spread(NamedTuple):
    """The mean over the splits and the standard deviation, which one split does not have."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of one value a split."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class SplitResult:
    """One method on one split: a row for each OOD set and one for their mean, in percent, and what it cost.

    `seed` is that of the split, `training_seed` that of the method, None where it has none. `accepted` is the share of
    the ID test sequences, in percent, that the threshold from the validation sequences lets through, None without them.
    """

    seed: int
    training_seed: int | None
    rows: list[ResultRow]
    accepted: float | None
    fit_seconds: float
    seconds_per_thousand: float
    artefact_bytes: int
    warnings: list[str]


@dataclass(frozen=True)
class Contender:
    """A method and its results on all splits that differ for it; one that failed on some has no figures.

    `failures` says of each split without a result which it is and why.
    """

    method: Method
    splits: list[SplitResult]
    failures: list[str] = field(default_factory=list)

    def figure(self, dataset: str, metric: str) -> Spread:
        """A metric on one OOD set (or `MEAN`), in percent."""
        rows = [row for split in self.splits for row in split.rows if row["dataset"] == dataset]
        return Spread.of([cast(float, dict(row)[metric]) for row in rows])

    @property
    def accepted(self) -> Spread | None:
        """The accept rate reached on the test sequences, in percent."""
        reached = [split.accepted for split in self.splits if split.accepted is not None]
        return Spread.of(reached) if reached else None

    @property
    def fit_seconds(self) -> float:
        """Seconds of a fit, the mean over the splits."""
        return fmean(split.fit_seconds for split in self.splits)

    @property
    def seconds_per_thousand(self) -> float:
        """Seconds to score 1000 sequences, the mean over the splits."""
        return fmean(split.seconds_per_thousand for split in self.splits)

    @property
    def artefact_bytes(self) -> int:
        """Bytes of a saved detector, the mean over the splits."""
        return round(fmean(split.artefact_bytes for split in self.splits))


@dataclass(frozen=True)
class Comparison:
    """The results of a plan, its methods in their order."""

    plan: Plan
    contenders: list[Contender]

    @property
    def datasets(self) -> list[str]:
        """The OOD sets and, last, their mean."""
        return [*self.plan.ood, MEAN]

    def to_json(self) -> dict[str, Any]:
        """All figures as plain JSON; metrics in percent."""
        plan = self.plan
        return {
            "apood": __version__,
            "splits": plan.splits,
            "share": plan.share,
            "seed": plan.seed,
            "stores": {key: str(folder) for key, folder in plan.stores.items()},
            **({} if plan.id is None else {"test_share": plan.test_share}),
            "methods": [self._contender_to_json(contender) for contender in self.contenders],
        }

    def _contender_to_json(self, contender: Contender) -> dict[str, Any]:
        method, accepted = contender.method, contender.accepted
        facts = {
            "name": method.label,
            "method": method.method,
            "parameters": {name: to_json(value) for name, value in method.parameters.items()},
            "aux": method.uses_aux,
            "failures": contender.failures,
            "splits": [vars(split) for split in contender.splits],
        }
        if contender.failures:
            return facts
        return facts | {
            "fit_seconds": contender.fit_seconds,
            "score_seconds_per_1000": contender.seconds_per_thousand,
            "artefact_bytes": contender.artefact_bytes,
            "accepted": None if accepted is None else accepted._asdict(),
            "results": {
                dataset: {metric: contender.figure(dataset, metric)._asdict() for metric in METRICS}
                for dataset in self.datasets
            },
        }


def compare(plan: Plan, *, cache: Path | None = None, jobs: int = 1) -> Comparison:
    """Fits and evaluates every method of the plan on every split.

    What lies in `cache` already is not done again, so that a comparison goes on where it was interrupted, and only
    what is new in a changed plan is done. Without one nothing is kept. With several `jobs` as many processes share the
    cores, and the seconds are those of processes that disturb each other. A method that cannot be fitted or scored has
    `failures` instead of figures and stops no other; an error is raised when all have.
    """
    plan = checked(plan)
    check_integer("jobs", jobs, 1)
    if cache is None:
        with tempfile.TemporaryDirectory(prefix="apood-") as folder:  # without a seed all splits may be the same fit
            return compare(plan, cache=Path(folder), jobs=jobs)
    tasks = [
        _Task(plan, cache, number, method)
        for number in range(plan.splits)
        for method in plan.methods
        if _differs(plan, method, number)
    ]
    share = share_cores(len(tasks), jobs) if jobs > 1 else None
    done = list(zip(tasks, outcomes(_split_result, tasks, share, "compare", str), strict=True))
    contenders = [_contender(method, [own for own in done if own[0].method is method]) for method in plan.methods]
    if all(contender.failures for contender in contenders):
        first = contenders[0]
        raise InputError(
            f"None of the {len(contenders)} methods could be fitted and scored; "
            f"the first: {first.method.label}, {first.failures[0]}"
        )
    return Comparison(plan, contenders)


def _contender(method: Method, done: "Sequence[tuple[_Task, SplitResult | Failure]]") -> Contender:
    return Contender(
        method,
        [outcome for _, outcome in done if isinstance(outcome, SplitResult)],
        [f"split {task.number + 1}: {outcome.reason}" for task, outcome in done if isinstance(outcome, Failure)],
    )


def _differs(plan: Plan, method: Method, number: int) -> bool:
    """Whether a split is not the first one again: in whole stores only a seed makes a difference."""
    return number == 0 or plan.share < 1 or plan.id is not None or method.seeded


class _Task(NamedTuple):
    """One method on one split."""

    plan: Plan
    cache: Path
    number: int
    method: Method

    def __str__(self) -> str:
        return f"{self.method.label}, split {self.number + 1}"


def _split_result(task: _Task) -> SplitResult:
    plan, method, seed = task.plan, task.method, task.plan.seed + task.number
    return split_result(method.label, seed, method.detector(seed), split_data(plan, task.number, method), task.cache)


def split_result(label: str, seed: int, detector: Detector, data: SplitData, cache: Path) -> SplitResult:
    """What comes of a detector that learns from the data of a split and scores its sets; `run` keeps it in `cache`."""
    sets = {"test": data.test, **{f"ood.{name}": source for name, source in data.ood.items()}}
    if data.validation is not None:
        sets["validation"] = data.validation
    done = run(detector, data.train, data.aux, sets, cache)
    rows = result_rows(label, done.scores["test"], {name: done.scores[f"ood.{name}"] for name in data.ood})
    return SplitResult(
        seed=seed,
        training_seed=detector.get_params(deep=False).get("seed"),
        rows=[*rows, mean_row(rows)],
        accepted=None if data.validation is None else _accepted(done.scores["validation"], done.scores["test"]),
        fit_seconds=done.fit_seconds,
        seconds_per_thousand=done.seconds_per_thousand,
        artefact_bytes=done.artefact_bytes,
        warnings=done.warnings,
    )


def _accepted(validation: Scores, test: Scores) -> float:
    threshold = conformal_threshold(validation, ACCEPT)
    return round(100 * float(np.mean((test >= threshold) & ~np.isneginf(test))), 4)
