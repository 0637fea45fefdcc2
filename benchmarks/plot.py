"""The picture of growth: time against tokens, heads and queries, on logarithmic axes where a line means a power."""

import re
from collections.abc import Sequence
from pathlib import Path

from apood.report.canvas import INK, new_figure, save_figure
from benchmarks.growth import BY_HEADS, BY_QUERIES, BY_TOKENS
from benchmarks.record import Record, Row

__all__ = ["draw_growth", "has_growth"]

_PANELS = {BY_TOKENS: "tokens", BY_HEADS: "heads M", BY_QUERIES: "queries T"}
_OURS, _BARE, _FAINT = "#2a6f97", "#d1603d", "#9a9a9a"


def has_growth(records: Sequence[Record]) -> bool:
    """Whether there is anything to draw."""
    return any(record.row.what in _PANELS for record in records)


def draw_growth(path: Path, records: Sequence[Record]) -> None:
    """One panel for each thing that grows; the dotted line is proportional growth through the largest point."""
    figure = new_figure((11, 3.4))
    for axes, (what, label) in zip(figure.subplots(1, len(_PANELS)), _PANELS.items(), strict=True):
        rows = sorted((record.row for record in records if record.row.what == what), key=lambda row: _size(row, what))
        sizes = [_size(row, what) for row in rows]
        axes.plot(sizes, [row.value for row in rows], "o-", color=_OURS, markersize=4, label="attention pool")
        axes.plot(sizes, [row.limit_value for row in rows], "s--", color=_BARE, markersize=3, label="bare product")
        if rows:
            last = rows[-1].value / sizes[-1]
            axes.plot(sizes, [last * size for size in sizes], ":", color=_FAINT, label="proportional")
        axes.set(xscale="log", yscale="log", xlabel=label, ylabel="ms")
        axes.tick_params(labelsize=8, labelcolor=INK)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(fontsize=8, frameon=False)
    save_figure(figure, path)


def _size(row: Row, what: str) -> int:
    sizes = {name: int(number) for name, number in re.findall(r"([A-Z])=(\d+)", row.shape)}
    return {BY_TOKENS: sizes["N"] * sizes["S"], BY_HEADS: sizes["M"], BY_QUERIES: sizes["T"]}[what]
