"""Heat maps of a grid of settings."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from apood.report.canvas import INK, escape_dollars, make_panels, new_figure, save_figure
from apood.support.errors import InputError

__all__ = ["HeatCell", "draw_heatmap", "format_setting", "plot_heatmap"]

_FAINT, _MARK = "#ececec", "#d1603d"
_COLUMNS = 3  # panels beside each other
_CELL_WIDTH, _CELL_HEIGHT, _MARGIN = 0.8, 0.5, 0.9  # inches


class HeatCell(NamedTuple):
    """Settings and their value, None if they failed."""

    settings: Mapping[str, Any]
    value: float | None

    @property
    def number(self) -> float:
        """The value, or NaN if there is no finite one."""
        return self.value if self.value is not None and math.isfinite(self.value) else math.nan


class _Axis(NamedTuple):
    """Parameters that change together, and their values."""

    names: tuple[str, ...]
    values: list[tuple[Any, ...]]

    def find_place(self, settings: Mapping[str, Any]) -> int:
        return self.values.index(_select(settings, self.names))

    def make_ticks(self) -> list[str]:
        return [escape_dollars(", ".join(map(format_setting, value))) for value in self.values]


def plot_heatmap(
    path: Path | str,
    cells: Sequence[HeatCell],
    *,
    title: str,
    label: str,
    best: Mapping[str, Any] | None = None,
    higher_is_better: bool = True,
) -> None:
    """Write the heat map of `draw_heatmap` to `path`."""
    figure = draw_heatmap(cells, title=title, label=label, best=best, higher_is_better=higher_is_better)
    save_figure(figure, Path(path))


def draw_heatmap(
    cells: Sequence[HeatCell],
    *,
    title: str,
    label: str,
    best: Mapping[str, Any] | None = None,
    higher_is_better: bool = True,
) -> Any:
    """Return a figure with the number of each cell, and a frame around the cell with the settings `best`.

    The two parameters with the most values are the axes; the others make small multiples. Parameters that change
    together, such as heads and queries whose product is fixed, count as one. A cell without a finite value failed.
    """
    if not cells:
        raise InputError("A heat map needs at least one cell, got none.")
    names = list(dict.fromkeys(name for cell in cells for name in cell.settings))
    if incomplete := [cell for cell in cells if set(cell.settings) != set(names)]:
        raise InputError(f"Every cell of a heat map needs {', '.join(names)}, got {dict(incomplete[0].settings)}.")
    across, down, *others = _find_axes([cell.settings for cell in cells], names)
    panels = list(product(*(axis.values for axis in others)))
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = columns * (_CELL_WIDTH * len(across.values) + _MARGIN) + 1.5
    height = rows * (_CELL_HEIGHT * len(down.values) + _MARGIN) + 0.6
    figure = new_figure((max(width, 5.0), max(height, 2.2)))
    figure.suptitle(escape_dollars(title), x=0.01, ha="left", fontsize=12, color=INK)
    grid = make_panels(figure, len(panels), columns)
    known = [cell.number for cell in cells if math.isfinite(cell.number)] or [0.0]
    for axes, panel in zip(grid, panels, strict=True):
        own = [c for c in cells if all(_select(c.settings, a.names) == v for a, v in zip(others, panel, strict=True))]
        image = _draw_panel(
            axes, own, across, down, (min(known), max(known)), "viridis" if higher_is_better else "viridis_r"
        )
        _frame(axes, [cell for cell in own if best is not None and dict(cell.settings) == dict(best)], across, down)
        heading = "; ".join(
            f"{', '.join(a.names)} = {', '.join(map(format_setting, v))}" for a, v in zip(others, panel, strict=True)
        )
        axes.set_title(escape_dollars(heading), fontsize=10, color=INK)
    scale = figure.colorbar(image, ax=grid, fraction=0.05, pad=0.02)
    scale.set_label(escape_dollars(label), fontsize=9, color=INK)
    scale.ax.tick_params(labelsize=8, labelcolor=INK)
    scale.outline.set_visible(False)
    return figure


def _find_axes(settings: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[_Axis]:
    """Return at least two axes, the longest first. A parameter with only one value is not an axis."""
    found: list[tuple[str, ...]] = []
    for name in names:
        if len(_find_values(settings, (name,))) < 2:
            continue
        for number, group in enumerate(found):
            together = len(_find_values(settings, (*group, name)))
            if together == len(_find_values(settings, group)) == len(_find_values(settings, (name,))):
                found[number] = (*group, name)
                break
        else:
            found.append((name,))
    axes = [_Axis(group, _find_values(settings, group)) for group in found]
    axes.sort(key=lambda axis: -len(axis.values))
    return axes + [_Axis((), [()])] * (2 - len(axes))


def _find_values(settings: Sequence[Mapping[str, Any]], names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Return the values that parameters have together, sorted if they are numbers."""
    values = list(dict.fromkeys(_select(each, names) for each in settings))
    return sorted(values) if all(isinstance(part, Real) for value in values for part in value) else values


def _select(settings: Mapping[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(settings[name] for name in names)


def format_setting(value: Any) -> str:
    """Return the value of a parameter, a float with three digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _format_value(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:.1e}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _draw_panel(
    axes: Any, cells: Sequence[HeatCell], across: _Axis, down: _Axis, limits: tuple[float, float], colours: str
) -> Any:
    table = np.full((len(down.values), len(across.values)), np.nan)
    for cell in cells:
        table[down.find_place(cell.settings), across.find_place(cell.settings)] = cell.number
    axes.set_facecolor(_FAINT)
    image = axes.imshow(table, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto")
    for cell in cells:
        x, y = across.find_place(cell.settings), down.find_place(cell.settings)
        if math.isnan(cell.number):
            axes.text(x, y, "failed", ha="center", va="center", fontsize=8, color=INK)
        else:
            red, green, blue, _ = image.cmap(image.norm(cell.number))
            light = 0.3 * red + 0.6 * green + 0.1 * blue > 0.5  # then black is readable, else white
            axes.text(
                x,
                y,
                _format_value(cell.number),
                ha="center",
                va="center",
                fontsize=9,
                color="black" if light else "white",
            )
    axes.set_xticks(range(len(across.values)), across.make_ticks(), fontsize=8, color=INK)
    axes.set_yticks(range(len(down.values)), down.make_ticks(), fontsize=8, color=INK)
    axes.set_xlabel(escape_dollars(", ".join(across.names)), fontsize=9, color=INK)
    axes.set_ylabel(escape_dollars(", ".join(down.names)), fontsize=9, color=INK)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return image


def _frame(axes: Any, cells: Sequence[HeatCell], across: _Axis, down: _Axis) -> None:
    from matplotlib.patches import Rectangle

    for cell in cells:
        corner = across.find_place(cell.settings) - 0.47, down.find_place(cell.settings) - 0.46
        axes.add_patch(Rectangle(corner, 0.94, 0.92, fill=False, edgecolor=_MARK, linewidth=3))
