"""Rows of results, as they are written to disk: one for each method and OOD dataset, in percent."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypedDict, cast

from apood.decisions.conformal import Scores, as_scores
from apood.evaluation.intervals import Estimate
from apood.evaluation.metrics import aupr_id, aupr_ood, auroc, fpr95
from apood.support.errors import InputError

__all__ = ["MEAN", "ResultRow", "mean_row", "result_rows"]

MEAN: Final = "mean"
"""The dataset name of a row that holds a method's mean over its datasets."""

_METRICS: Mapping[str, Callable[[Scores, Scores], Estimate]] = {
    "auroc": auroc,
    "fpr95": fpr95,
    "aupr_id": aupr_id,
    "aupr_ood": aupr_ood,
}


class ResultRow(TypedDict):
    """One method on one dataset; the ends of the intervals are None in a mean row."""

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


def result_rows(method: str, id_scores: Scores, ood_scores: Mapping[str, Scores]) -> list[ResultRow]:
    """One row for each dataset in `ood_scores`, all against the same ID scores."""
    if MEAN in ood_scores:
        raise InputError(f"A dataset cannot be called {MEAN!r}: that name is kept for the mean over the datasets.")
    id_ = as_scores(id_scores, f"ID scores of {method}")
    vectors = {dataset: as_scores(scores, f"{dataset} scores of {method}") for dataset, scores in ood_scores.items()}
    rows = []
    for dataset, ood in vectors.items():
        row: dict[str, str | float | int] = {"method": method, "dataset": dataset}
        for name, metric in _METRICS.items():
            value, low, high = (round(100 * share, 4) for share in metric(id_, ood))
            row |= {name: value, f"{name}_low": low, f"{name}_high": high}
        row |= {"n_id": len(id_), "n_ood": len(ood)}
        rows.append(cast(ResultRow, row))
    return rows


def mean_row(rows: Sequence[ResultRow]) -> ResultRow:
    """The mean of one method's rows, every dataset counted alike; `n_ood` is their sum."""
    methods = sorted({row["method"] for row in rows})
    if len(methods) != 1:
        raise InputError(
            f"A mean row needs the rows of one method, got {len(methods)}: {', '.join(methods) or 'none'}."
        )
    mean: dict[str, str | float | int | None] = {"method": methods[0], "dataset": MEAN}
    for name in _METRICS:
        values = [cast(float, dict(row)[name]) for row in rows]
        mean |= {name: round(sum(values) / len(values), 4), f"{name}_low": None, f"{name}_high": None}
    mean |= {"n_id": rows[0]["n_id"], "n_ood": sum(row["n_ood"] for row in rows)}
    return cast(ResultRow, mean)
