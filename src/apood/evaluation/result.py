"""Results of a study: rows of metrics, runs, and what came of each entry."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, Final, NamedTuple, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from apood.decisions.conformal import Scores, as_scores
from apood.detectors.contract.artefact import to_json
from apood.detectors.contract.held_out import HeldOutFit
from apood.evaluation.entry import Entry
from apood.evaluation.metrics import Estimate, aupr_id, aupr_ood, auroc, fpr95
from apood.support.errors import InputError

__all__ = ["MEAN", "METRICS", "Result", "ResultRow", "Run", "Spread", "compute_mean_row", "compute_rows"]

MEAN: Final = "mean"
"""The dataset name of a row that holds the mean over the datasets."""

METRICS: Mapping[str, Callable[[Scores, Scores], Estimate]] = {
    "auroc": auroc,
    "fpr95": fpr95,
    "aupr_id": aupr_id,
    "aupr_ood": aupr_ood,
}


class ResultRow(TypedDict):
    """One method on one dataset, in percent; the ends of the intervals are None in a mean row."""

    method: str
    dataset: str
    auroc: float
    auroc_low: float | None
    auroc_high: float | None
    fpr95: float
    fpr95_low: float | None
    fpr95_high: float | None
    aupr_id: float
    aupr_id_low: float | None
    aupr_id_high: float | None
    aupr_ood: float
    aupr_ood_low: float | None
    aupr_ood_high: float | None
    n_id: int
    n_ood: int


def compute_rows(method: str, id_scores: Scores, ood_scores: Mapping[str, Scores]) -> list[ResultRow]:
    """Return one row for each dataset in `ood_scores`, all against the same ID scores."""
    if MEAN in ood_scores:
        raise InputError(f"A dataset cannot be called {MEAN!r}: that name is kept for the mean over the datasets.")
    id_ = as_scores(id_scores, f"ID scores of {method}")
    vectors = {dataset: as_scores(scores, f"{dataset} scores of {method}") for dataset, scores in ood_scores.items()}
    rows = []
    for dataset, ood in vectors.items():
        row: dict[str, str | float | int] = {"method": method, "dataset": dataset}
        for name, metric in METRICS.items():
            value, low, high = (round(100 * share, 4) for share in metric(id_, ood))
            row |= {name: value, f"{name}_low": low, f"{name}_high": high}
        row |= {"n_id": len(id_), "n_ood": len(ood)}
        rows.append(cast(ResultRow, row))
    return rows


def compute_mean_row(rows: Sequence[ResultRow]) -> ResultRow:
    """Return the mean of one method's rows; every dataset counts equally, and `n_ood` is their sum."""
    methods = sorted({row["method"] for row in rows})
    if len(methods) != 1:
        raise InputError(
            f"A mean row needs the rows of one method, got {len(methods)}: {', '.join(methods) or 'none'}."
        )
    mean: dict[str, str | float | int | None] = {"method": methods[0], "dataset": MEAN}
    for name in METRICS:
        values = [cast(float, dict(row)[name]) for row in rows]
        mean |= {name: round(sum(values) / len(values), 4), f"{name}_low": None, f"{name}_high": None}
    mean |= {"n_id": rows[0]["n_id"], "n_ood": sum(row["n_ood"] for row in rows)}
    return cast(ResultRow, mean)


class Spread(NamedTuple):
    """Mean and standard deviation over the splits.

    Attributes:
        mean: the mean.
        std: the standard deviation, None for a single split.
    """

    mean: float
    std: float | None

    @classmethod
    def from_values(cls, values: Sequence[float]) -> "Spread":
        """Return the spread of one value per split."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Run:
    """One entry on one split: the fit, its scores and their metrics.

    Times are those of the work itself, also if its results were read from the cache.

    Attributes:
        seed: of the split.
        training_seed: of the detector, None if it has none.
        rows: one for each OOD set and one for their mean.
        accepted: percentage of the ID test sequences that the threshold from the validation sequences accepts; None
            without validation sequences.
        fit_seconds: seconds of the fit; work that an interruption lost after the last checkpoint is not counted.
        seconds_per_thousand: seconds to score 1000 sequences.
        artefact_bytes: size of the saved detector.
        warnings: warnings of the fit.
        diverged: the warning of a training that diverged.
        held_out: the fit to the test sequences, if there are no OOD sets and the method can tell.
        test_scores: of the ID test sequences.
        ood_scores: of each OOD set.
    """

    seed: int
    training_seed: int | None
    rows: list[ResultRow]
    accepted: float | None
    fit_seconds: float
    seconds_per_thousand: float
    artefact_bytes: int
    warnings: list[str]
    diverged: str | None = None
    held_out: HeldOutFit | None = None
    test_scores: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), compare=False, repr=False)
    ood_scores: Mapping[str, NDArray[np.float64]] = field(default_factory=dict, compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return everything but the scores."""
        kept = ("seed", "training_seed", "rows", "accepted", "fit_seconds", "seconds_per_thousand", "artefact_bytes")
        return {name: getattr(self, name) for name in (*kept, "warnings")}


@dataclass(frozen=True)
class Result:
    """An entry and its runs; an entry that failed on some splits has no figures.

    Attributes:
        entry: the entry.
        runs: one for each split on which it did not fail.
        failures: the reason for each split on which it failed, by the number of the split, from 1 on.
    """

    entry: Entry
    runs: list[Run]
    failures: Mapping[int, str] = field(default_factory=dict)

    @property
    def failure_notes(self) -> list[str]:
        """The failures as sentences."""
        return [f"split {number}: {reason}" for number, reason in self.failures.items()]

    @property
    def accepted(self) -> Spread | None:
        """The percentage of ID test sequences that the threshold accepts."""
        reached = [run.accepted for run in self.runs if run.accepted is not None]
        return Spread.from_values(reached) if reached else None

    @property
    def fit_seconds(self) -> float:
        """Seconds of a fit, averaged over the runs."""
        return fmean(run.fit_seconds for run in self.runs)

    @property
    def seconds_per_thousand(self) -> float:
        """Seconds to score 1000 sequences, averaged over the runs."""
        return fmean(run.seconds_per_thousand for run in self.runs)

    @property
    def artefact_bytes(self) -> int:
        """Size of the saved detector, averaged over the runs."""
        return round(fmean(run.artefact_bytes for run in self.runs))

    @property
    def datasets(self) -> list[str]:
        """The OOD sets and, last, their mean."""
        return list(dict.fromkeys(row["dataset"] for run in self.runs for row in run.rows))

    def summarize(self, dataset: str, metric: str) -> Spread:
        """Return a metric on one OOD set (or `MEAN`), in percent."""
        rows = [row for run in self.runs for row in run.rows if row["dataset"] == dataset]
        return Spread.from_values([cast(float, dict(row)[metric]) for row in rows])

    def to_json(self) -> dict[str, Any]:
        """Return all figures as plain JSON."""
        facts = {
            "name": self.entry.label,
            "method": self.entry.method if isinstance(self.entry.method, str) else self.entry.kind.name,
            "parameters": {name: to_json(value) for name, value in self.entry.parameters.items()},
            "aux": self.entry.uses_aux,
            "failures": self.failure_notes,
            "splits": [run.to_json() for run in self.runs],
        }
        if self.failures:
            return facts
        return facts | {
            "fit_seconds": self.fit_seconds,
            "score_seconds_per_1000": self.seconds_per_thousand,
            "artefact_bytes": self.artefact_bytes,
            "accepted": None if self.accepted is None else self.accepted._asdict(),
            "results": {
                dataset: {metric: self.summarize(dataset, metric)._asdict() for metric in METRICS}
                for dataset in self.datasets
            },
        }
