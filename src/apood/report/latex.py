"""A grid of results as a LaTeX table, for papers; it needs the package booktabs."""

import re
from itertools import zip_longest

from apood.report.grid import Cell, Figure, Grid

__all__ = ["latex_table"]

_SPECIAL = {
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
_ROOT = re.compile(r"√([A-Za-z0-9]*)")
_EMPHASIS = {"best": r"\textbf{%s}", "second": r"\underline{%s}", "": "%s"}


def latex_table(grid: Grid) -> str:
    """A `table` with AUROC above FPR95, and the legend as its caption."""
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{_escaped(grid.legend)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(grid.columns)}}}",
        r"\toprule",
        _row(["method", *grid.columns]),
    ]
    for block in grid.blocks:
        lines.append(r"\midrule")
        if block.title:
            lines.append(rf"\multicolumn{{{len(grid.columns) + 1}}}{{l}}{{\emph{{{_escaped(block.title)}}}}} \\")
        for number, method in enumerate(block.methods):
            lines += [r"\addlinespace"] if number else []
            lines += _method_rows(method, [grid.cells.get((method, column), (Figure("–"),)) for column in grid.columns])
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\smallskip{{\footnotesize {_escaped(note)}}}" for note in grid.notes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _method_rows(method: str, cells: list[Cell]) -> list[str]:
    """As many lines as the highest cell has; the name stands in the first."""
    below = zip_longest(*cells, fillvalue=Figure(""))
    return [_row([method if not number else "", *figures]) for number, figures in enumerate(below)]


def _row(cells: list[str | Figure]) -> str:
    figures = [Figure(cell) if isinstance(cell, str) else cell for cell in cells]
    return " & ".join(_EMPHASIS[figure.mark] % _escaped(figure.text) for figure in figures).rstrip() + r" \\"


def _escaped(text: str) -> str:
    signs = "".join(_SPECIAL.get(sign, sign) for sign in text)
    return _ROOT.sub(r"$\\sqrt{\1}$", signs)
