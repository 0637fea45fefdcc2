"""Pictures of experiments: curves over a number, dots in rows, and tokens with their weights."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from apood.report.canvas import INK, escape_dollars, make_panels, new_figure
from apood.support.errors import InputError

__all__ = ["Curve", "Dot", "WeightedTokens", "draw_curves", "draw_dots", "draw_token_weights"]

_COLOURS = ("#2a6f97", "#d1603d", "#5b8c5a", "#8e6c8a", "#b8860b", "#555555")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_OURS, _OTHERS, _FAINT = "#2a6f97", "#d1603d", "#b8c4cc"
_COLUMNS = 2
_DECADE_TICKS = (1.0, 2.0, 3.0, 5.0)
_PANEL_WIDTH, _PANEL_HEIGHT, _ROW_HEIGHT, _MARGIN = 4.6, 3.1, 0.34, 1.2  # inches
_CHARACTERS, _MOST_LINES = 56, 8
_CHARACTER_WIDTH, _LINE_HEIGHT, _BAR_WIDTH = 0.088, 0.24, 0.9  # inches
_WEIGHT_COLOURS, _WEIGHT_TICKS = ("#fff5eb", "#fdae6b", "#a63603"), (0.0, 0.02, 0.1, 0.25, 0.5, 1.0)


class Curve(NamedTuple):
    """A line: its name, and the value and its half-interval at each number."""

    label: str
    points: Mapping[int, tuple[float, float | None]]


class Dot(NamedTuple):
    """A row: its value, its half-interval, the values that it is the mean of, and the value of the paper."""

    label: str
    value: float
    reach: float | None = None
    parts: Sequence[float] = ()
    published: float | None = None


class WeightedTokens(NamedTuple):
    """The text and the weight of each token."""

    pieces: Sequence[str]
    weights: Sequence[float]


def draw_curves(panels: Mapping[str, Sequence[Curve]], below: str, beside: str, *, logarithmic: bool = False) -> Any:
    """Return a figure with one panel per data set and one line per method.

    The numbers are evenly spaced in their order, so that 0 has a place, too. `below` and `beside` label the axes.
    Values of different magnitudes need a `logarithmic` axis.
    """
    numbers = sorted({number for curves in panels.values() for curve in curves for number in curve.points})
    if not numbers:
        raise InputError("A picture of curves needs at least one point, got none.")
    columns = min(_COLUMNS, len(panels))
    figure = new_figure((_PANEL_WIDTH * columns, _PANEL_HEIGHT * -(-len(panels) // columns) + 0.4))
    lines: dict[str, Any] = {}
    for axes, (title, curves) in zip(make_panels(figure, len(panels), columns), panels.items(), strict=True):
        for style, curve in enumerate(curves):
            colour, marker = _COLOURS[style % len(_COLOURS)], _MARKERS[style % len(_MARKERS)]
            own = sorted(curve.points)
            places = [numbers.index(number) for number in own]
            values = [curve.points[number][0] for number in own]
            reach = [curve.points[number][1] or 0.0 for number in own]
            lines[curve.label] = axes.plot(places, values, color=colour, marker=marker, markersize=5)[0]
            low = [value - far for value, far in zip(values, reach, strict=True)]
            high = [value + far for value, far in zip(values, reach, strict=True)]
            axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set_xticks(range(len(numbers)), [f"{number:,}" for number in numbers])
        _label(axes, title, below)
        axes.set_ylabel(escape_dollars(beside), fontsize=9, color=INK)
        if logarithmic:
            _make_logarithmic(axes)
        axes.tick_params(labelsize=8, labelcolor=INK)
        axes.grid(axis="y", color="#ececec")
        axes.spines[["right", "top"]].set_visible(False)
    names = [escape_dollars(name) for name in lines]
    figure.legend(lines.values(), names, loc="outside lower center", ncols=len(lines), fontsize=8, frameon=False)
    return figure


def draw_dots(panels: Mapping[str, Sequence[Dot]], label: str) -> Any:
    """Return a figure with one panel per part of a table and one line per row. Published values are open circles."""
    if not panels or not all(panels.values()):
        raise InputError("A picture of a table needs at least one row in each part, got none.")
    rows = max(map(len, panels.values()))
    figure = new_figure((_PANEL_WIDTH * len(panels) + 1.0, _ROW_HEIGHT * rows + _MARGIN))
    marks: dict[str, Any] = {}
    for axes, (title, dots) in zip(make_panels(figure, len(panels), len(panels)), panels.items(), strict=True):
        places = range(len(dots) - 1, -1, -1)  # the first row on top
        for place, dot in zip(places, dots, strict=True):
            for part in dot.parts:
                marks["each set"] = axes.plot(part, place, "|", color=_FAINT, markersize=9, markeredgewidth=1.5)[0]
            marks["here"] = axes.errorbar(
                dot.value, place, xerr=dot.reach, fmt="o", color=_OURS, markersize=6, capsize=3, zorder=3
            )
            if dot.published is not None:
                marks["in the paper"] = axes.plot(
                    dot.published, place, "o", markerfacecolor="none", markeredgecolor=_OTHERS, markersize=8, zorder=4
                )[0]
        axes.set_yticks(list(places), [escape_dollars(dot.label) for dot in dots])
        axes.set_ylim(-0.6, len(dots) - 0.4)
        _label(axes, title, label)
        axes.tick_params(labelsize=9, labelcolor=INK)
        axes.grid(axis="x", color="#ececec", zorder=0)
        axes.spines[["left", "right", "top"]].set_visible(False)
    figure.legend(marks.values(), marks.keys(), loc="outside lower right", ncols=len(marks), fontsize=8, frameon=False)
    return figure


def draw_token_weights(panels: Mapping[str, WeightedTokens]) -> Any:
    """Return a figure with the tokens of each panel in lines. A bar shows which weight, from 0 to 1, has which colour.

    A colour means the same weight in every figure. Long texts are cut.
    """
    if not panels:
        raise InputError("A picture of tokens needs at least one text, got none.")
    placed = {title: _lay_out(tokens) for title, tokens in panels.items()}
    lines = max(place[1] for places in placed.values() for place in places) + 1
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    size = columns * (_CHARACTERS * _CHARACTER_WIDTH + 0.3) + _BAR_WIDTH, rows * (lines * _LINE_HEIGHT + 0.5)
    figure = new_figure(size)
    colours = _make_weight_colours()
    grid = make_panels(figure, len(panels), columns)
    for axes, (title, places) in zip(grid, placed.items(), strict=True):
        for start, line, piece, weight in places:
            _draw_token(axes, start, line, piece, colours.to_rgba(weight))
        axes.set(xlim=(0, _CHARACTERS), ylim=(lines, 0))
        axes.set_title(escape_dollars(title), loc="left", fontsize=9, color=INK)
        axes.axis("off")
    bar = figure.colorbar(colours, ax=grid, fraction=0.03, pad=0.02, format="{x:.0%}", ticks=_WEIGHT_TICKS)
    bar.set_label("share of the attention", fontsize=9, color=INK)
    bar.ax.tick_params(labelsize=8, labelcolor=INK)
    bar.outline.set_visible(False)
    return figure


def _make_weight_colours() -> Any:
    """Return colours from pale for 0 to dark for 1. They follow the root, so that small weights can be told apart."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    return ScalarMappable(PowerNorm(0.5, 0.0, 1.0), LinearSegmentedColormap.from_list("weights", _WEIGHT_COLOURS))


def _label(axes: Any, title: str, below: str) -> None:
    axes.set_title(escape_dollars(title), loc="left", fontsize=11, color=INK)
    axes.set_xlabel(escape_dollars(below), fontsize=9, color=INK)


def _make_logarithmic(axes: Any) -> None:
    """Use a logarithmic axis with plain numbers, also between the powers of ten if there are less than two decades."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=_DECADE_TICKS if high < 100 * low else (1.0,)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_token(axes: Any, start: int, line: int, piece: str, background: tuple[float, float, float, float]) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((start, line + 0.05), len(piece), 0.9, facecolor=background, linewidth=0))
    dark = sum(background[:3]) < 1.5
    font = {"family": "monospace", "fontsize": 8, "color": "white" if dark else INK}
    axes.text(start, line + 0.5, escape_dollars(piece), va="center", **font)


def _lay_out(tokens: WeightedTokens) -> list[tuple[int, int, str, float]]:
    """Return the column, the line, the visible text and the weight of each token."""
    places = []
    column = line = 0
    for piece, weight in zip(tokens.pieces, tokens.weights, strict=True):
        visible = piece.replace("\n", "⏎").replace("\t", " ") or "·"
        if column and column + len(visible) > _CHARACTERS:
            column, line = 0, line + 1
            visible = visible.lstrip() or "·"
        if line == _MOST_LINES:
            break
        places.append((column, line, visible[:_CHARACTERS], weight))
        column += len(visible)
    return places
