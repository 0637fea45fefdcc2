"""The figures of the paper's tables (Hofmann et al., ICLR 2026): AUROC and FPR95 in percent.

They are in published.txt, a block per table: the experiment and the table, the OOD sets, and for each mode a line per
method, with the AUROC on each set and their mean, then FPR95 likewise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from statistics import fmean
from typing import NamedTuple

from apood.evaluation.result import MEAN

__all__ = ["BEST_SCALING", "Figures", "Published", "read_published"]


class Figures(NamedTuple):
    """A cell of a table."""

    auroc: float
    fpr95: float


@dataclass(frozen=True)
class Published:
    """A table of the paper.

    Attributes:
        table: its number.
        columns: the OOD sets, without their mean.
        cells: the figures by mode, row and column; the mean is in the column `MEAN`.
    """

    table: str
    columns: tuple[str, ...]
    cells: dict[tuple[str, str, str], Figures]

    def figures(self, mode: str, row: str, column: str, compared: Sequence[str]) -> Figures | None:
        """Return the paper's figures for a row and a column, if there are any.

        The mean is taken over the sets that are also `compared`, since means over different sets say nothing together.
        """
        if column != MEAN or set(compared) >= set(self.columns):
            return self.cells.get((mode, row, column))
        known = [self.cells[mode, row, name] for name in self.shared(compared) if (mode, row, name) in self.cells]
        return Figures(*(round(fmean(values), 2) for values in zip(*known, strict=True))) if known else None

    def shared(self, compared: Sequence[str]) -> list[str]:
        """Return the sets of the paper's table that are also `compared`."""
        return [name for name in self.columns if name in compared]


def read_published(bench: str) -> Published | None:
    """Return the table that an experiment repeats, if there is one."""
    text = files("apood.experiments.paper").joinpath("published.txt").read_text(encoding="utf-8")
    for block in text.replace("/\n", "/").split("\n\n"):
        name, columns, *lines = block.splitlines()
        if name.startswith(f"{bench}, "):
            sets = tuple(columns.split(" | "))
            return Published(name.removeprefix(f"{bench}, "), sets, dict(_read_cells(lines, sets)))
    return None


def _read_cells(lines: Sequence[str], columns: tuple[str, ...]) -> Iterator[tuple[tuple[str, str, str], Figures]]:
    mode = ""
    for line in lines:
        row, _, figures = line.partition(": ")
        if not figures:
            mode = row.rstrip(":")
            continue
        aurocs, fprs = (map(float, half.split()) for half in figures.split("/"))
        for column, auroc, fpr in zip((*columns, MEAN), aurocs, fprs, strict=True):
            yield (mode, row, column), Figures(auroc, fpr)


BEST_SCALING = 99.40
"""The mean AUROC in percent of the largest model in figure 4, M = 1024 and T = 16; the others are only drawn."""
