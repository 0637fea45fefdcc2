"""Plots of a report as SVG, which a page holds inline. Colours are classes, so that the page can change them."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from apood.explain.visible import make_visible

__all__ = ["COLOURS", "draw_distributions", "draw_lengths", "draw_roc", "draw_share", "draw_training"]

COLOURS = 8
"""The number of classes of colours of sets, s0 to s7."""

_WIDTH, _LEFT, _RIGHT, _BOTTOM = 460, 52, 14, 38
_ROW = 60  # height of the histogram of one set
_SQUARE = 320
_PANEL = 96  # height of the curve of a training
_NAME = 28  # characters of a name in a picture


def draw_distributions(histograms: Mapping[str, Any], threshold: float) -> str:
    """Return a histogram of the scores per set, one below the other, with the threshold as a line."""
    edges: list[float] = histograms["edges"]
    shares: dict[str, list[float]] = histograms["shares"]
    low, high = edges[0], edges[-1]
    height = _ROW * len(shares) + _BOTTOM
    width = (_WIDTH - _LEFT - _RIGHT) / (len(edges) - 1)

    def x(score: float) -> float:
        return _LEFT + (min(max(score, low), high) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    parts = []
    for number, (name, own) in enumerate(shares.items()):
        base, most = _ROW * (number + 1), max([*own, 1e-9])
        bars = "".join(
            f"M{x(edge):.1f} {base}v-{share / most * (_ROW - 18):.1f}h{width:.1f}V{base}z"
            for edge, share in zip(edges, own, strict=False)
            if share
        )
        parts.append(f'<path class="fill s{number % COLOURS}" d="{bars}"/>')
        parts.append(f'<text x="{_LEFT}" y="{base - _ROW + 12}">{_shorten(name)}</text>')
        parts.append(_line(_LEFT, base, _WIDTH - _RIGHT, base, "axis"))
    foot = _ROW * len(shares)
    if math.isfinite(threshold):
        parts.append(_line(x(threshold), 0, x(threshold), foot, "threshold"))
    parts += [
        f'<text x="{x(value):.0f}" y="{foot + 15}" text-anchor="middle">{value:.3g}</text>'
        for value in _choose_ticks(low, high)
    ]
    parts.append(_label("score, higher is more in-distribution; the line is the threshold", height))
    return _wrap(parts, _WIDTH, height, "Distribution of the scores of each set, with the threshold")


def draw_roc(curves: Sequence[Mapping[str, Any]], numbers: Mapping[str, int]) -> str:
    """Return the ROC curves of the OOD sets; `numbers` chooses the colour of each set."""
    side = _SQUARE - _LEFT - _BOTTOM

    def point(pair: Sequence[float]) -> str:
        return f"{_LEFT + pair[0] * side:.1f} {8 + (1 - pair[1]) * side:.1f}"

    parts = [f'<rect class="axis" x="{_LEFT}" y="8" width="{side}" height="{side}"/>']
    parts.append(_line(_LEFT, 8 + side, _LEFT + side, 8, "chance"))
    for curve in curves:
        path = "M" + "L".join(map(point, curve["points"]))
        parts.append(f'<path class="line s{numbers[curve["set"]] % COLOURS}" d="{path}"/>')
    for share in (0.0, 0.5, 1.0):
        parts.append(f'<text x="{_LEFT + share * side:.0f}" y="{side + 22}" text-anchor="middle">{share:.0%}</text>')
        y = 12 + (1 - share) * side - (4 if share == 0 else 0)  # 0% stands in the corner of both axes
        parts.append(f'<text x="{_LEFT - 4}" y="{y:.0f}" text-anchor="end">{share:.0%}</text>')
    height = side + 46
    parts.append(_label("OOD accepted (across), ID accepted (up)", height, _SQUARE))
    return _wrap(parts, _SQUARE, height, "ROC curves: share of ID accepted against share of OOD accepted")


def draw_lengths(sets: Sequence[Mapping[str, Any]], numbers: Mapping[str, int], threshold: float) -> str:
    """Return the scores of some inputs against their numbers of tokens, on a logarithmic scale."""
    points: list[tuple[float, float]] = [point for one in sets for point in one["points"] if point[0] > 0]
    if not points:
        return ""
    longest, shortest = max(p[0] for p in points), min(p[0] for p in points)
    ordered = sorted(p[1] for p in points)
    low, high = ordered[len(ordered) // 100], ordered[-1 - len(ordered) // 100]
    if math.isfinite(threshold):
        low, high = min(low, threshold), max(high, threshold)
    high = max(high, low + 1e-9 * max(abs(low), 1.0))
    height, inner = 260, 260 - _BOTTOM - 8
    spread = math.log(longest / shortest) or 1.0

    def x(tokens: float) -> float:
        return _LEFT + math.log(tokens / shortest) / spread * (_WIDTH - _LEFT - _RIGHT)

    def y(score: float) -> float:
        return 8 + (high - min(max(score, low), high)) / (high - low) * inner

    parts = []
    if math.isfinite(threshold):
        parts.append(_line(_LEFT, y(threshold), _WIDTH - _RIGHT, y(threshold), "threshold"))
    for one in sets:
        dots = "".join(f"M{x(t):.1f} {y(s):.1f}h0" for t, s in one["points"] if t > 0)
        parts.append(f'<path class="dots s{numbers[one["set"]] % COLOURS}" d="{dots}"/>')
    for tokens in sorted({shortest, round(math.sqrt(shortest * longest)), longest}):
        parts.append(f'<text x="{x(tokens):.0f}" y="{height - 20}" text-anchor="middle">{tokens:,}</text>')
    for value in _choose_ticks(low, high):
        parts.append(f'<text x="{_LEFT - 4}" y="{y(value) + 4:.0f}" text-anchor="end">{value:.3g}</text>')
    parts.append(_label("tokens (across, logarithmic), score (up)", height))
    return _wrap(parts, _WIDTH, height, "Scores of inputs against their numbers of tokens")


def draw_share(share: float, number: int) -> str:
    """Return a bar that is filled by a share, from 0 to 1, in the colour of a set; the number stands beside it."""
    bar = f'<rect class="fill s{number % COLOURS}" width="{100 * share:.1f}" height="10"/>'
    return f'<svg class="share" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">{bar}</svg>'


def draw_training(curve: Sequence[Sequence[float]]) -> str:
    """Return the loss and the mean squared distance of a training by step, one below the other."""
    steps = [point[0] for point in curve]
    last = max(steps[-1], 1)
    right, height = _WIDTH - _RIGHT, 2 * _PANEL + _BOTTOM
    parts = []
    for row, name in enumerate(("loss", "mean squared distance per head, d²")):
        values = [point[row + 1] for point in curve]
        low, high = min(values), max(values)
        high = max(high, low + 1e-9 * max(abs(low), 1.0))
        top, inner = _PANEL * row + 22, _PANEL - 34
        places = [
            f"{_LEFT + step / last * (right - _LEFT):.1f} {top + (high - value) / (high - low) * inner:.1f}"
            for step, value in zip(steps, values, strict=True)
        ]
        parts.append(f'<text x="{_LEFT}" y="{top - 8}">{name}</text>')
        parts.append(_line(_LEFT, top + inner + 4, right, top + inner + 4, "axis"))
        parts.append(f'<path class="line s{row}" d="M{"L".join(places)}"/>')
        for value, y in ((high, top + 4), (low, top + inner + 4)):
            parts.append(f'<text x="{_LEFT - 4}" y="{y}" text-anchor="end">{value:.2g}</text>')
    for step in sorted({0, last // 2, last}):
        x = _LEFT + step / last * (right - _LEFT)
        parts.append(f'<text x="{x:.0f}" y="{2 * _PANEL + 14}" text-anchor="middle">{step:,.0f}</text>')
    parts.append(_label("step", height))
    return _wrap(parts, _WIDTH, height, "Loss and mean squared distance of the training by step")


def _choose_ticks(low: float, high: float) -> list[float]:
    """Return some round numbers between two numbers."""
    step = 10 ** math.floor(math.log10((high - low) / 6))
    step = next((step * k for k in (1, 2, 5) if (high - low) / (step * k) <= 6), step * 10)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _shorten(name: str) -> str:
    name = make_visible(name)
    return escape(name if len(name) <= _NAME else name[: _NAME - 1] + "…")


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _label(text: str, height: int, width: int = _WIDTH) -> str:
    return f'<text class="label" x="{width / 2:.0f}" y="{height - 4}" text-anchor="middle">{escape(text)}</text>'


def _wrap(parts: Sequence[str], width: int, height: int, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
