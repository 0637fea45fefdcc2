"""A grid of results for the terminal, and as Markdown, LaTeX and HTML."""

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from apood.report.grid import Cell, Figure, Grid
from apood.support.checks import import_optional

__all__ = ["TerminalTable", "escape_markdown", "format_html", "format_latex", "format_markdown", "refuse_without_jinja"]

_NAME_WIDTH = 16
_CELL_WIDTH, _WIDEST_CELL = len("100.0 ±0.4"), 40
_NO_CELL = (Figure("–"),)
_TERMINAL_STYLES = {"best": "bold", "second": "underline", "": ""}
_MARKDOWN_STYLES = {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}
_LATEX_STYLES = {"best": r"\textbf{%s}", "second": r"\underline{%s}", "": "%s"}
_LATEX_SIGNS = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "–": "--",
    "†": r"\textdagger{}",
    "…": r"\ldots{}",
    "␣": r"\textvisiblespace{}",
    "β": r"$\beta$",
    "λ": r"$\lambda$",
    "²": "$^2$",
    "\n": " ",
    "[": "{[}",  # at the beginning of a row it would belong to the row break before
    "]": "{]}",
}
_LATEX_ROOT = re.compile(r"√([A-Za-z0-9]*)")
_HTML_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ title }}</title>
<style>
:root { --ink: #1d1d1f; --faint: #6e6e73; --paper: #fff; --line: #d2d2d7; --shade: #f5f5f7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #f5f5f7; --faint: #98989d; --paper: #161618; --line: #3a3a3c; --shade: #222225; }
}
body { margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: var(--ink); background: var(--paper);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.3rem; }
div { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .8rem; text-align: right; vertical-align: top; white-space: nowrap; }
th:first-child, tbody th { text-align: left; }
thead th { border-bottom: 1.5px solid var(--ink); vertical-align: bottom; white-space: normal; }
tbody th { font-weight: 500; }
tbody tr { border-bottom: 1px solid var(--line); }
tbody tr:hover { background: var(--shade); }
tr.block th { color: var(--faint); font-style: italic; padding-top: 1rem; }
.below { display: block; color: var(--faint); font-size: .87em; }
b { font-weight: 650; color: var(--ink); }
u { text-underline-offset: .2em; }
p { color: var(--faint); font-size: .9em; max-width: 60rem; }
</style>
<h1>{{ title }}</h1>
<div>
<table>
<thead>
<tr><th scope="col">method</th>{% for column in grid.columns %}<th scope="col">{{ column }}</th>{% endfor %}</tr>
</thead>
<tbody>
{% for block in grid.blocks -%}
{% if block.title -%}
<tr class="block"><th colspan="{{ grid.columns | length + 1 }}" scope="rowgroup">{{ block.title }}</th></tr>
{% endif -%}
{% for method in block.methods -%}
<tr><th scope="row">{{ method }}</th>
{%- for column in grid.columns -%}
<td>{% for figure in grid.cells.get((method, column), absent) -%}
<span{% if not loop.first %} class="below"{% endif %}>
{%- if figure.mark == "best" %}<b>{{ figure.text }}</b>
{%- elif figure.mark == "second" %}<u>{{ figure.text }}</u>
{%- else %}{{ figure.text }}{% endif -%}
</span>
{%- endfor %}</td>
{%- endfor %}</tr>
{% endfor -%}
{% endfor -%}
</tbody>
</table>
</div>
{% for note in grid.notes -%}
<p>{{ note }}</p>
{% endfor -%}
<p>{{ grid.legend }}</p>
</html>
"""


class TerminalTable:
    """A table for `rich`, with AUROC above FPR95 in each cell. Columns that do not fit go below, into a second part.

    Nine columns without intervals fit into a terminal of 120 characters, five into one of 80.
    """

    def __init__(self, grid: Grid, title: str | None = None) -> None:
        self._grid = grid
        self._title = title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the parts. Rich calls this with the width of the terminal."""
        names = min(_NAME_WIDTH, max(len(name) for name in self._list_names()))
        columns = self._grid.columns
        parts = math.ceil(len(columns) / max(1, (options.max_width - names) // (self._measure_cells() + 1)))
        per_part = math.ceil(len(columns) / parts)
        if self._title:
            yield Text(f"{self._title}\n", style="bold")
        for start in range(0, len(columns), per_part):
            yield self._make_part(columns[start : start + per_part])
            yield ""
        for note in self._grid.notes:
            yield Text(note, style="dim")
        yield Text(self._grid.legend, style="dim italic")

    def _list_names(self) -> Iterator[str]:
        for block in self._grid.blocks:
            if block.title:
                yield block.title
            yield from block.methods

    def _measure_cells(self) -> int:
        """Return the width of the longest figure: a folded one would look like two figures."""
        longest = max((len(figure.text) for cell in self._grid.cells.values() for figure in cell), default=0)
        return min(max(_CELL_WIDTH, longest), _WIDEST_CELL)

    def _make_part(self, columns: Sequence[str]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, leading=1)
        table.add_column()
        width = self._measure_cells()
        for column in columns:
            table.add_column(_fold(column, width), justify="right", width=width, vertical="bottom")
        for block in self._grid.blocks:
            if block.title:
                table.add_row(Text(block.title, style="italic"))
            for method in block.methods:
                cells = [self._make_cell(self._grid.cells.get((method, column))) for column in columns]
                table.add_row(_fold(method, _NAME_WIDTH), *cells)
        return table

    def _make_cell(self, cell: Cell | None) -> Text:
        if cell is None:
            return Text("–", style="dim")
        below = ("", *("dim" for _ in cell[1:]))
        lines = [
            Text(figure.text, f"{_TERMINAL_STYLES[figure.mark]} {dim}".strip())
            for figure, dim in zip(cell, below, strict=True)
        ]
        missing = max(map(len, self._grid.cells.values())) - len(cell)  # so that a single line is the first one
        return Text("\n").join([*lines, *(Text("") for _ in range(missing))])


def _fold(name: str, width: int) -> Text:
    """Return a name on as many lines as it needs, broken at spaces and hyphens if it has them."""
    return Text("\n".join(textwrap.wrap(name, width)))


def format_markdown(grid: Grid) -> str:
    """Return a Markdown table with cells `AUROC / FPR95`, and a line that explains it."""

    def format_cell(method: str, column: str) -> str:
        figures = grid.cells.get((method, column), _NO_CELL)
        return " / ".join(_MARKDOWN_STYLES[figure.mark].format(escape_markdown(figure.text)) for figure in figures)

    lines = [["method", *map(escape_markdown, grid.columns)], ["---", *("---:" for _ in grid.columns)]]
    for block in grid.blocks:
        if block.title:
            lines.append([f"*{block.title}*", *("" for _ in grid.columns)])
        for method in block.methods:
            lines.append([escape_markdown(method), *(format_cell(method, column) for column in grid.columns)])
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return "\n\n".join([table, *map(escape_markdown, grid.notes), grid.legend]) + "\n"


def escape_markdown(text: str) -> str:
    """Return a text that Markdown shows as it is, also in a cell of a table."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", text)


def format_latex(grid: Grid) -> str:
    """Return a LaTeX `table` with AUROC above FPR95, and the legend as its caption. It needs the package booktabs."""
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{_escape_latex(grid.legend)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(grid.columns)}}}",
        r"\toprule",
        _format_latex_row(["method", *grid.columns]),
    ]
    for block in grid.blocks:
        lines.append(r"\midrule")
        if block.title:
            lines.append(rf"\multicolumn{{{len(grid.columns) + 1}}}{{l}}{{\emph{{{_escape_latex(block.title)}}}}} \\")
        for number, method in enumerate(block.methods):
            lines += [r"\addlinespace"] if number else []
            cells = [grid.cells.get((method, column), _NO_CELL) for column in grid.columns]
            # As many lines as the highest cell has; the name is in the first.
            for line, figures in enumerate(zip_longest(*cells, fillvalue=Figure(""))):
                lines.append(_format_latex_row(["" if line else method, *figures]))
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\smallskip{{\footnotesize {_escape_latex(note)}}}" for note in grid.notes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _format_latex_row(cells: Sequence[str | Figure]) -> str:
    figures = [Figure(cell) if isinstance(cell, str) else cell for cell in cells]
    return " & ".join(_LATEX_STYLES[figure.mark] % _escape_latex(figure.text) for figure in figures).rstrip() + r" \\"


def _escape_latex(text: str) -> str:
    return _LATEX_ROOT.sub(r"$\\sqrt{\1}$", "".join(_LATEX_SIGNS.get(sign, sign) for sign in text))


def format_html(grid: Grid, title: str) -> str:
    """Return an HTML page that needs no other file, in light or dark colours like the reader's system."""
    page: str = _make_environment().from_string(_HTML_PAGE).render(grid=grid, title=title, absent=_NO_CELL)
    return page


def refuse_without_jinja() -> None:
    """Raise an error if jinja2 is missing, before the work that ends in a page."""
    _make_environment()


def _make_environment() -> Any:
    jinja2 = import_optional("jinja2", "report", "An HTML page")
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
