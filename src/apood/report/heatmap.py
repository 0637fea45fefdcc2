"""A grid of settings as a heat map."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from apood.report.canvas import INK, literal, new_figure, save_figure
from apood.support.errors import InputError

__all__ = ["Cell", "heatmap_of", "plot_heatmap"]

_FAINT, _MARK = "#ececec", "#d1603d"
_COLUMNS = 3  # panels beside each other
_CELL_WIDTH, _CELL_HEIGHT, _MARGIN = 0.8, 0.5, 0.9  # inches


class Cell(NamedTuple):
    """Some settings and what they are worth; None where they failed."""

    settings: Mapping[str, Any]
    value: float | None

    @property
    def number(self) -> float:
        """The value, NaN where there is none."""
        return self.value if self.value is not None and math.isfinite(self.value) else math.nan


class _Axis(NamedTuple):
    """Parameters that change together, and the values they have together."""

    names: tuple[str, ...]
    values: list[tuple[Any, ...]]

    def place(self, settings: Mapping[str, Any]) -> int:
        return self.values.index(_taken(settings, self.names))

    def ticks(self) -> list[str]:
        return [literal(", ".join(map(_shown, value))) for value in self.values]


def plot_heatmap(
    path: Path | str,
    cells: Sequence[Cell],
    *,
    title: str,
    label: str,
    best: Mapping[str, Any] | None = None,
    higher_is_better: bool = True,
) -> None:
    """Draws the cells as `heatmap_of` does, as a PNG at `path`."""
    figure = heatmap_of(cells, title=title, label=label, best=best, higher_is_better=higher_is_better)
    save_figure(figure, Path(path))


def heatmap_of(
    cells: Sequence[Cell],
    *,
    title: str,
    label: str,
    best: Mapping[str, Any] | None = None,
    higher_is_better: bool = True,
) -> Any:
    """Draws the cells, each with its number, and a frame around the one with the settings `best`.

    The two parameters with the most values are the axes, and the others make small multiples. Parameters that change
    together, such as heads and queries whose product is fixed, count as one. A cell without a finite value failed.
    """
    if not cells:
        raise InputError("A heat map needs at least one cell, got none.")
    names = list(dict.fromkeys(name for cell in cells for name in cell.settings))
    if lacking := [cell for cell in cells if set(cell.settings) != set(names)]:
        raise InputError(f"Every cell of a heat map needs {', '.join(names)}, got {dict(lacking[0].settings)}.")
    across, down, *others = _axes([cell.settings for cell in cells], names)
    panels = list(product(*(axis.values for axis in others)))
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = columns * (_CELL_WIDTH * len(across.values) + _MARGIN) + 1.5
    height = rows * (_CELL_HEIGHT * len(down.values) + _MARGIN) + 0.6
    figure = new_figure((max(width, 5.0), max(height, 2.2)))
    figure.suptitle(literal(title), x=0.01, ha="left", fontsize=12, color=INK)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    known = [cell.number for cell in cells if math.isfinite(cell.number)] or [0.0]
    for axes, panel in zip(grid, panels, strict=False):
        own = [c for c in cells if all(_taken(c.settings, a.names) == v for a, v in zip(others, panel, strict=True))]
        image = _draw(axes, own, across, down, (min(known), max(known)), "viridis" if higher_is_better else "viridis_r")
        _mark(axes, [cell for cell in own if best is not None and dict(cell.settings) == dict(best)], across, down)
        heading = "; ".join(
            f"{', '.join(a.names)} = {', '.join(map(_shown, v))}" for a, v in zip(others, panel, strict=True)
        )
        axes.set_title(literal(heading), fontsize=10, color=INK)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    scale = figure.colorbar(image, ax=list(grid), fraction=0.05, pad=0.02)
    scale.set_label(literal(label), fontsize=9, color=INK)
    scale.ax.tick_params(labelsize=8, labelcolor=INK)
    scale.outline.set_visible(False)
    return figure


def _axes(settings: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[_Axis]:
    """At least two axes, the longest first; a parameter that has one value only is none."""
    found: list[tuple[str, ...]] = []
    for name in names:
        if len(_distinct(settings, (name,))) < 2:
            continue
        for number, group in enumerate(found):
            together = len(_distinct(settings, (*group, name)))
            if together == len(_distinct(settings, group)) == len(_distinct(settings, (name,))):
                found[number] = (*group, name)
                break
        else:
            found.append((name,))
    axes = [_Axis(group, _distinct(settings, group)) for group in found]
    axes.sort(key=lambda axis: -len(axis.values))
    return axes + [_Axis((), [()])] * (2 - len(axes))


def _distinct(settings: Sequence[Mapping[str, Any]], names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """The values that parameters have together: sorted if they are numbers, else as they come."""
    values = list(dict.fromkeys(_taken(each, names) for each in settings))
    return sorted(values) if all(isinstance(part, Real) for value in values for part in value) else values


def _taken(settings: Mapping[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(settings[name] for name in names)


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _figure(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:.1e}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _draw(
    axes: Any, cells: Sequence[Cell], across: _Axis, down: _Axis, limits: tuple[float, float], colours: str
) -> Any:
    table = np.full((len(down.values), len(across.values)), np.nan)
    for cell in cells:
        table[down.place(cell.settings), across.place(cell.settings)] = cell.number
    axes.set_facecolor(_FAINT)
    image = axes.imshow(table, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto")
    for cell in cells:
        x, y = across.place(cell.settings), down.place(cell.settings)
        if math.isnan(cell.number):
            axes.text(x, y, "failed", ha="center", va="center", fontsize=8, color=INK)
        else:
            red, green, blue, _ = image.cmap(image.norm(cell.number))
            light = 0.3 * red + 0.6 * green + 0.1 * blue > 0.5  # black is read on it, else white
            axes.text(
                x, y, _figure(cell.number), ha="center", va="center", fontsize=9, color="black" if light else "white"
            )
    axes.set_xticks(range(len(across.values)), across.ticks(), fontsize=8, color=INK)
    axes.set_yticks(range(len(down.values)), down.ticks(), fontsize=8, color=INK)
    axes.set_xlabel(literal(", ".join(across.names)), fontsize=9, color=INK)
    axes.set_ylabel(literal(", ".join(down.names)), fontsize=9, color=INK)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return image


def _mark(axes: Any, cells: Sequence[Cell], across: _Axis, down: _Axis) -> None:
    from matplotlib.patches import Rectangle

    for cell in cells:
        corner = across.place(cell.settings) - 0.47, down.place(cell.settings) - 0.46
        axes.add_patch(Rectangle(corner, 0.94, 0.92, fill=False, edgecolor=_MARK, linewidth=3))
