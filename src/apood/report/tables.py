"""Results side by side: methods down, datasets across, for the terminal and for Markdown."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from apood.evaluation.rows import MEAN, ResultRow, mean_row
from apood.support.errors import InputError

__all__ = ["TerminalTable", "markdown_table"]

_LEGEND = (
    "AUROC (higher is better) and FPR95 (lower is better) in percent, ± half of the 95% interval; "
    "the best AUROC of a column is bold."
)
_NAME_WIDTH = 16
_CELL_WIDTH = len("100.0 ±0.4")


class _Grid(NamedTuple):
    """The rows arranged; a method that lacks a dataset has no cell there, and no mean."""

    methods: list[str]
    columns: list[str]
    cells: Mapping[tuple[str, str], ResultRow]

    def is_best(self, row: ResultRow) -> bool:
        """Whether no method has a higher AUROC in the column, as far as the figures shown can tell."""
        rivals = (cell["auroc"] for (_, column), cell in self.cells.items() if column == row["dataset"])
        return f"{row['auroc']:.1f}" == f"{max(rivals):.1f}"


class TerminalTable:
    """Results for `rich`: each cell has AUROC above FPR95; what does not fit beside goes below, in a second block.

    Nine columns fit into a terminal of 120 characters, five into one of 80.
    """

    def __init__(self, rows: Sequence[ResultRow], title: str | None = None) -> None:
        self._grid = _arrange(rows)
        self._title = title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich, which knows the width of the terminal."""
        names = min(_NAME_WIDTH, max(len(method) for method in self._grid.methods))
        columns = self._grid.columns
        blocks = math.ceil(len(columns) / max(1, (options.max_width - names) // (_CELL_WIDTH + 1)))
        per_block = math.ceil(len(columns) / blocks)
        if self._title:
            yield Text(f"{self._title}\n", style="bold")
        for start in range(0, len(columns), per_block):
            yield self._block(columns[start : start + per_block])
            yield ""
        yield Text(_LEGEND, style="dim italic")

    def _block(self, columns: Sequence[str]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, leading=1)
        table.add_column()
        for column in columns:
            table.add_column(_folded(column, _CELL_WIDTH), justify="right", width=_CELL_WIDTH, vertical="bottom")
        for method in self._grid.methods:
            table.add_row(_folded(method, _NAME_WIDTH), *(self._cell(method, column) for column in columns))
        return table

    def _cell(self, method: str, column: str) -> Text:
        row = self._grid.cells.get((method, column))
        if row is None:
            return Text("–", style="dim")
        auroc, fpr = _figures(row)
        return Text.assemble((auroc, "bold" if self._grid.is_best(row) else ""), "\n", (fpr, "dim"))


def markdown_table(rows: Sequence[ResultRow]) -> str:
    """Results as a Markdown table, each cell `AUROC / FPR95`, and a line that explains it."""
    grid = _arrange(rows)

    def cell(method: str, column: str) -> str:
        row = grid.cells.get((method, column))
        if row is None:
            return "–"
        auroc, fpr = _figures(row)
        return f"**{auroc}** / {fpr}" if grid.is_best(row) else f"{auroc} / {fpr}"

    lines = [
        ["method", *grid.columns],
        ["---", *("---:" for _ in grid.columns)],
        *([method, *(cell(method, column) for column in grid.columns)] for method in grid.methods),
    ]
    table = "\n".join("| " + " | ".join(part.replace("|", "\\|") for part in line) + " |" for line in lines)
    return f"{table}\n\n{_LEGEND}\n"


def _arrange(rows: Sequence[ResultRow]) -> _Grid:
    found = [row for row in rows if row["dataset"] != MEAN]
    if not found:
        raise InputError(f"A table needs at least one row of a dataset, got {len(rows)} rows and none of them is.")
    methods = list(dict.fromkeys(row["method"] for row in found))
    datasets = list(dict.fromkeys(row["dataset"] for row in found))
    cells = {(row["method"], row["dataset"]): row for row in found}
    for method in methods:
        if all((method, dataset) in cells for dataset in datasets):
            cells[method, MEAN] = mean_row([cells[method, dataset] for dataset in datasets])
    return _Grid(methods, [*datasets, MEAN], cells)


def _figures(row: ResultRow) -> tuple[str, str]:
    """AUROC as `81.2 ±1.4` and FPR95, which is far less certain, as `43 ±5`."""
    return (
        f"{row['auroc']:.1f}{_reach(row['auroc_low'], row['auroc_high'], 1)}",
        f"{row['fpr95']:.0f}{_reach(row['fpr95_low'], row['fpr95_high'], 0)}",
    )


def _reach(low: float | None, high: float | None, digits: int) -> str:
    return "" if low is None or high is None else f" ±{(high - low) / 2:.{digits}f}"


def _folded(name: str, width: int) -> Text:
    """A name on as many lines as it needs, broken at spaces and hyphens where it has them."""
    return Text("\n".join(textwrap.wrap(name, width)))
