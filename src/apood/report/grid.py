"""The content of a table of results: methods in rows, data sets in columns, the best of each column marked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from apood.evaluation.result import MEAN, ResultRow, compute_mean_row
from apood.support.errors import InputError

__all__ = ["Block", "Cell", "Figure", "Grid", "Mark", "format_interval", "make_grid", "mark_best"]

Mark = Literal["best", "second", ""]


class Figure(NamedTuple):
    """A figure as text, and its rank in its column."""

    text: str
    mark: Mark = ""


Cell = tuple[Figure, ...]
"""The lines of a cell: AUROC and FPR95, or one fact."""


@dataclass(frozen=True)
class Block:
    """Methods that compete with each other, and a title if there are several blocks."""

    title: str | None
    methods: list[str]


@dataclass(frozen=True)
class Grid:
    """The content of a table.

    Attributes:
        blocks: the methods.
        columns: names of the columns.
        cells: the cell of each method and column that has one.
        legend: one line that explains the figures.
        notes: lines below the table.
    """

    blocks: list[Block]
    columns: list[str]
    cells: Mapping[tuple[str, str], Cell]
    legend: str
    notes: list[str] = field(default_factory=list)

    @property
    def methods(self) -> list[str]:
        """The methods of all blocks."""
        return [method for block in self.blocks for method in block.methods]


def mark_best(values: Mapping[str, float], digits: int, *, highest: bool, second: bool) -> dict[str, Mark]:
    """Return which of a column's values are best and, if wanted, second best, after rounding to `digits`.

    If several are best, none is second.
    """
    shown = {key: f"{value:.{digits}f}" for key, value in values.items()}
    ranking = sorted(set(shown.values()), key=float, reverse=highest)
    named: dict[str, Mark] = {ranking[0]: "best"} if ranking else {}
    if second and len(ranking) > 1 and list(shown.values()).count(ranking[0]) == 1:
        named[ranking[1]] = "second"
    return {key: named.get(text, "") for key, text in shown.items()}


def make_grid(rows: Sequence[ResultRow]) -> Grid:
    """Return the results of an evaluation with their intervals. A method that lacks a data set has no mean."""
    found = [row for row in rows if row["dataset"] != MEAN]
    if not found:
        raise InputError(f"A table needs at least one row of a dataset, got {len(rows)} other rows.")
    methods = list(dict.fromkeys(row["method"] for row in found))
    datasets = list(dict.fromkeys(row["dataset"] for row in found))
    known = {(row["method"], row["dataset"]): row for row in found}
    for method in methods:
        if all((method, dataset) in known for dataset in datasets):
            known[method, MEAN] = compute_mean_row([known[method, dataset] for dataset in datasets])
    cells: dict[tuple[str, str], Cell] = {}
    for column in [*datasets, MEAN]:
        own = {method: known[method, column] for method in methods if (method, column) in known}
        best = mark_best({method: row["auroc"] for method, row in own.items()}, 1, highest=True, second=False)
        for method, row in own.items():
            auroc, fpr = _format_metrics(row)
            cells[method, column] = (Figure(auroc, best[method]), Figure(fpr))
    legend = (
        "AUROC (higher is better) and FPR95 (lower is better) in percent, with 95% intervals; "
        "the best AUROC of a column is bold."
    )
    return Grid([Block(None, methods)], [*datasets, MEAN], cells, legend)


def _format_metrics(row: ResultRow) -> tuple[str, str]:
    """Return AUROC as `81.2 (79.8–82.6)`, and FPR95, which is far less certain, as `43 (38–48)`."""
    return (
        f"{row['auroc']:.1f}{format_interval(row['auroc_low'], row['auroc_high'], 1)}",
        f"{row['fpr95']:.0f}{format_interval(row['fpr95_low'], row['fpr95_high'], 0)}",
    )


def format_interval(low: object, high: object, digits: int) -> str:
    """Return an interval as it stands behind its value, or nothing if an end is unknown."""
    if not isinstance(low, float) or not isinstance(high, float):
        return ""
    return f" ({low:.{digits}f}–{high:.{digits}f})"
