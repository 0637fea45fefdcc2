"""Figures over a growing number, as lines: one panel a data set, one line a method."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from apood.report.canvas import INK, literal, new_figure
from apood.support.errors import InputError

__all__ = ["Curve", "curves_of"]

_COLOURS = ("#2a6f97", "#d1603d", "#5b8c5a", "#8e6c8a", "#b8860b", "#555555")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_COLUMNS = 2
_STEPS = (1.0, 2.0, 3.0, 5.0)  # that a decade is labelled at
_PANEL_WIDTH, _PANEL_HEIGHT = 4.6, 3.1  # inches


class Curve(NamedTuple):
    """A line: its name, and by the number below it a figure and how far it varies."""

    label: str
    points: Mapping[int, tuple[float, float | None]]


def curves_of(panels: Mapping[str, Sequence[Curve]], below: str, beside: str, *, logarithmic: bool = False) -> Any:
    """Draws a panel for each set; numbers stand evenly apart in their order, so that 0 has a place too.

    Figures of different magnitudes need a `logarithmic` axis.
    """
    numbers = sorted({number for curves in panels.values() for curve in curves for number in curve.points})
    if not numbers:
        raise InputError("A picture of curves needs at least one point, got none.")
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure((_PANEL_WIDTH * columns, _PANEL_HEIGHT * rows + 0.4))
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    known: dict[str, Any] = {}
    for axes, (title, curves) in zip(grid, panels.items(), strict=False):
        for style, curve in enumerate(curves):
            colour, marker = _COLOURS[style % len(_COLOURS)], _MARKERS[style % len(_MARKERS)]
            own = sorted(curve.points)
            places = [numbers.index(number) for number in own]
            values = [curve.points[number][0] for number in own]
            reach = [curve.points[number][1] or 0.0 for number in own]
            known[curve.label] = axes.plot(places, values, color=colour, marker=marker, markersize=5)[0]
            low = [value - far for value, far in zip(values, reach, strict=True)]
            high = [value + far for value, far in zip(values, reach, strict=True)]
            axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set_xticks(range(len(numbers)), [f"{number:,}" for number in numbers])
        axes.set_title(literal(title), loc="left", fontsize=11, color=INK)
        axes.set_xlabel(literal(below), fontsize=9, color=INK)
        axes.set_ylabel(literal(beside), fontsize=9, color=INK)
        if logarithmic:
            _set_logarithmic(axes)
        axes.tick_params(labelsize=8, labelcolor=INK)
        axes.grid(axis="y", color="#ececec")
        axes.spines[["right", "top"]].set_visible(False)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    names = [literal(name) for name in known]
    figure.legend(known.values(), names, loc="outside lower center", ncols=len(known), fontsize=8, frameon=False)
    return figure


def _set_logarithmic(axes: Any) -> None:
    """Plain numbers where there are ticks: on less than two decades between the powers of ten too."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=_STEPS if high < 100 * low else (1.0,)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
