"""A grid of results for the terminal and for Markdown."""

import math
import re
import textwrap
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from apood.report.grid import Cell, Figure, Grid

__all__ = ["TerminalTable", "markdown_table"]

_NAME_WIDTH = 16
_CELL_WIDTH, _WIDEST_CELL = len("100.0 ±0.4"), 40
_STYLES = {"best": "bold", "second": "underline", "": ""}
_EMPHASIS = {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}


class TerminalTable:
    """Results for `rich`: each cell has AUROC above FPR95; what does not fit beside goes below, in a second part.

    Nine columns fit into a terminal of 120 characters, five into one of 80.
    """

    def __init__(self, grid: Grid, title: str | None = None) -> None:
        self._grid = grid
        self._title = title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich, which knows the width of the terminal."""
        names = min(_NAME_WIDTH, max(len(name) for name in self._names()))
        columns = self._grid.columns
        parts = math.ceil(len(columns) / max(1, (options.max_width - names) // (self._cell_width() + 1)))
        per_part = math.ceil(len(columns) / parts)
        if self._title:
            yield Text(f"{self._title}\n", style="bold")
        for start in range(0, len(columns), per_part):
            yield self._part(columns[start : start + per_part])
            yield ""
        for note in self._grid.notes:
            yield Text(note, style="dim")
        yield Text(self._grid.legend, style="dim italic")

    def _names(self) -> Iterator[str]:
        for block in self._grid.blocks:
            if block.title:
                yield block.title
            yield from block.methods

    def _cell_width(self) -> int:
        """Room for the longest figure, since one that is folded cannot be told from the one below it."""
        longest = max((len(figure.text) for cell in self._grid.cells.values() for figure in cell), default=0)
        return min(max(_CELL_WIDTH, longest), _WIDEST_CELL)

    def _part(self, columns: Sequence[str]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, leading=1)
        table.add_column()
        width = self._cell_width()
        for column in columns:
            table.add_column(_folded(column, width), justify="right", width=width, vertical="bottom")
        for block in self._grid.blocks:
            if block.title:
                table.add_row(Text(block.title, style="italic"))
            for method in block.methods:
                cells = [self._cell(self._grid.cells.get((method, column))) for column in columns]
                table.add_row(_folded(method, _NAME_WIDTH), *cells)
        return table

    def _cell(self, cell: Cell | None) -> Text:
        if cell is None:
            return Text("–", style="dim")
        below = ("", *("dim" for _ in cell[1:]))
        lines = [
            Text(figure.text, f"{_STYLES[figure.mark]} {dim}".strip()) for figure, dim in zip(cell, below, strict=True)
        ]
        missing = max(map(len, self._grid.cells.values())) - len(cell)  # so that a single line stands in the first
        return Text("\n").join([*lines, *(Text("") for _ in range(missing))])


def markdown_table(grid: Grid) -> str:
    """Results as a Markdown table, each cell `AUROC / FPR95`, and a line that explains it."""

    def cell(method: str, column: str) -> str:
        return " / ".join(map(_emphasised, grid.cells.get((method, column), (Figure("–"),))))

    lines = [["method", *map(_escaped, grid.columns)], ["---", *("---:" for _ in grid.columns)]]
    for block in grid.blocks:
        if block.title:
            lines.append([f"*{block.title}*", *("" for _ in grid.columns)])
        lines += [[_escaped(method), *(cell(method, column) for column in grid.columns)] for method in block.methods]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return "\n\n".join([table, *map(_escaped, grid.notes), grid.legend]) + "\n"


def _emphasised(figure: Figure) -> str:
    return _EMPHASIS[figure.mark].format(_escaped(figure.text))


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", text)


def _folded(name: str, width: int) -> Text:
    """A name on as many lines as it needs, broken at spaces and hyphens where it has them."""
    return Text("\n".join(textwrap.wrap(name, width)))
