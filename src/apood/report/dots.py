"""A table of figures as dots: one panel a part of the table, one line a row."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from apood.report.canvas import INK, literal, new_figure
from apood.support.errors import InputError

__all__ = ["Dot", "dots_of"]

_OURS, _OTHERS, _FAINT = "#2a6f97", "#d1603d", "#b8c4cc"
_PANEL_WIDTH, _ROW_HEIGHT, _MARGIN = 4.6, 0.34, 1.2  # inches


class Dot(NamedTuple):
    """A row: its figure, how far it varies, what it is the mean of, and what somebody else found."""

    label: str
    value: float
    reach: float | None = None
    parts: Sequence[float] = ()
    published: float | None = None


def dots_of(panels: Mapping[str, Sequence[Dot]], label: str) -> Any:
    """Draws a panel for each part, rows from the top; published figures are open circles."""
    if not panels or not all(panels.values()):
        raise InputError("A picture of a table needs at least one row in each part, got none.")
    rows = max(map(len, panels.values()))
    figure = new_figure((_PANEL_WIDTH * len(panels) + 1.0, _ROW_HEIGHT * rows + _MARGIN))
    known: dict[str, Any] = {}
    for axes, (title, dots) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        places = range(len(dots) - 1, -1, -1)  # the first row on top
        for place, dot in zip(places, dots, strict=True):
            for part in dot.parts:
                known["each set"] = axes.plot(part, place, "|", color=_FAINT, markersize=9, markeredgewidth=1.5)[0]
            known["here"] = axes.errorbar(
                dot.value, place, xerr=dot.reach, fmt="o", color=_OURS, markersize=6, capsize=3, zorder=3
            )
            if dot.published is not None:
                known["in the paper"] = axes.plot(
                    dot.published, place, "o", markerfacecolor="none", markeredgecolor=_OTHERS, markersize=8, zorder=4
                )[0]
        axes.set_yticks(list(places), [literal(dot.label) for dot in dots])
        axes.set_ylim(-0.6, len(dots) - 0.4)
        axes.set_title(literal(title), loc="left", fontsize=11, color=INK)
        axes.set_xlabel(literal(label), fontsize=9, color=INK)
        axes.tick_params(labelsize=9, labelcolor=INK)
        axes.grid(axis="x", color="#ececec", zorder=0)
        axes.spines[["left", "right", "top"]].set_visible(False)
    figure.legend(known.values(), known.keys(), loc="outside lower right", ncols=len(known), fontsize=8, frameon=False)
    return figure
