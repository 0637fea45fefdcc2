"""The picture of score distributions."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apood.decisions.conformal import Scores, as_scores
from apood.report.canvas import INK, escape_dollars, new_figure, save_figure
from apood.support.errors import InputError

__all__ = ["plot_score_distributions"]

_ID_COLOUR, _OOD_COLOUR, _FAINT = "#2a6f97", "#d1603d", "#9a9a9a"
_BINS = 240
_RIDGE = 0.85  # height of a ridge; ridges are 1 apart
_ID_SHARE = 8  # on either side, the axis is at most this many times as wide as the ID ridge
_LABEL = 0.28  # height of the labels beside a ridge
_CAPTION = (
    "How the scores of each set are distributed: the first set is in-distribution, the others are not. A number beside "
    "◂ or ▸ counts scores outside the picture."
)
_THRESHOLD_CAPTION = "The dashed line is the threshold: what is left of it, in pale, is refused."
_CAPTION_CHARACTERS = 125


def plot_score_distributions(
    path: Path | str,
    sets: Mapping[str, Scores],
    threshold: float | None = None,
    title: str = "Scores",
) -> None:
    """Draw one ridge per set, the first for ID and the others for OOD, and write the picture to `path`.

    The axis covers the bulk of the scores. Scores beyond it, including infinities, are counted at its edges. With a
    threshold, refused scores are pale, and each ridge shows the share of its set that is accepted. A caption says so.
    """
    vectors = {name: as_scores(scores, f"{name} scores") for name, scores in sets.items()}
    if not vectors:
        raise InputError("A plot of scores needs at least one set of scores, got none.")
    if empty := [name for name, scores in vectors.items() if not len(scores)]:
        raise InputError(f"Every set in a plot needs at least one score, got none for {', '.join(empty)}.")

    count = len(vectors)
    bases = range(count - 1, -1, -1)  # the first set on top
    limits = _choose_limits(list(vectors.values()), threshold)
    figure = new_figure((8, 1.7 + 0.6 * count))
    axes = figure.add_subplot()
    axes.set(xlim=limits, ylim=(-0.15, count), xlabel="score (higher is more in-distribution)")
    axes.set_title(escape_dollars(title), loc="left", fontsize=12, color=INK)
    for base, scores in zip(bases, vectors.values(), strict=True):
        colour = _ID_COLOUR if base == count - 1 else _OOD_COLOUR
        _draw_ridge(axes, base, scores, limits, threshold, colour)
    heights = [base + _LABEL for base in bases]
    axes.set_yticks(heights, [f"{escape_dollars(name)}\nn = {len(scores):,}" for name, scores in vectors.items()])
    _make_plain(axes)
    if threshold is not None:
        axes.axvline(threshold, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        beside = axes.secondary_yaxis("right")
        beside.set_yticks(heights, [f"{np.mean(scores >= threshold):.1%}" for scores in vectors.values()])
        _make_plain(beside)
        axes.text(1.008, heights[0] + 0.3, "accepted", transform=axes.get_yaxis_transform(), fontsize=9, color=INK)
    caption = _CAPTION if threshold is None else f"{_CAPTION} {_THRESHOLD_CAPTION}"
    figure.supxlabel(fill(caption, _CAPTION_CHARACTERS), x=0.01, ha="left", fontsize=8, color=INK)
    save_figure(figure, Path(path))


def _make_plain(axes: Any) -> None:
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.spines["bottom"].set_color(_FAINT)
    axes.tick_params(axis="y", length=0, labelsize=9, labelcolor=INK)
    axes.tick_params(axis="x", labelsize=9, color=_FAINT, labelcolor=INK)


def _choose_limits(vectors: list[NDArray[np.float64]], threshold: float | None) -> tuple[float, float]:
    """Return limits for the whiskers of all box plots, but not so wide that the ID ridge, the first, becomes narrow."""
    whiskers = []
    for scores in vectors:
        if len(finite := scores[np.isfinite(scores)]):
            lowest, low, high, highest = np.quantile(finite, [0.005, 0.25, 0.75, 0.995])
            reach = 1.5 * (high - low)
            whiskers.append((max(lowest, low - reach), min(highest, high + reach)))
    if not whiskers:
        return -1.0, 1.0
    left, right = np.min(whiskers), np.max(whiskers)
    if (wide := _ID_SHARE * (whiskers[0][1] - whiskers[0][0])) > 0:
        left, right = max(left, whiskers[0][1] - wide), min(right, whiskers[0][0] + wide)
    if threshold is not None and np.isfinite(threshold):
        left, right = min(left, threshold), max(right, threshold)
    size = max(abs(left), abs(right)) or 1.0
    margin = 0.05 * (right - left) if right - left > 1e-9 * size else 0.1 * size
    return float(left - margin), float(right + margin)


def _draw_ridge(
    axes: Any,
    base: int,
    scores: NDArray[np.float64],
    limits: tuple[float, float],
    threshold: float | None,
    colour: str,
) -> None:
    grid, density = _estimate_density(scores, limits)
    top = base + _RIDGE * density
    axes.fill_between(grid, base, top, color=colour, alpha=0.25, linewidth=0)
    accepted = grid if threshold is None else np.maximum(grid, threshold)
    axes.fill_between(accepted, base, top, color=colour, alpha=0.45, linewidth=0)
    axes.plot(grid, np.where(density > 3e-3, top, np.nan), color=colour, linewidth=1.2)
    axes.axhline(base, color=_FAINT, linewidth=0.5)
    below, above = int((scores < limits[0]).sum()), int((scores > limits[1]).sum())
    beside = {"transform": axes.get_yaxis_transform(), "fontsize": 8, "color": colour, "va": "bottom"}
    if below:
        axes.text(0.003, base + 0.12, f"◂ {below:,}", ha="left", **beside)
    if above:
        axes.text(0.997, base + 0.12, f"{above:,} ▸", ha="right", **beside)


def _estimate_density(
    scores: NDArray[np.float64], limits: tuple[float, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return places and a smoothed histogram inside the limits, with its peak at 1.

    The bandwidth is Silverman's, but at most a few percent of the axis, so that a long tail does not seem to cross the
    threshold.
    """
    inside = scores[(scores >= limits[0]) & (scores <= limits[1])]
    counts, edges = np.histogram(inside, bins=_BINS, range=limits)
    spread = np.subtract(*np.quantile(inside, [0.75, 0.25])) / 1.34 if len(inside) else 0.0
    bins = np.clip(0.9 * spread * len(scores) ** -0.2 / (edges[1] - edges[0]), 1.5, _BINS / 36)
    offsets = np.arange(-_BINS // 2, _BINS // 2 + 1)
    smooth = np.convolve(counts, np.exp(-0.5 * (offsets / bins) ** 2))[_BINS // 2 : -_BINS // 2]
    return (edges[:-1] + edges[1:]) / 2, smooth / (smooth.max() or 1.0)
