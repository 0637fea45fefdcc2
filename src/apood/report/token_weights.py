"""Tokens and the attention that they get, as text on a coloured ground."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from apood.report.canvas import INK, literal, new_figure
from apood.support.errors import InputError

__all__ = ["WeightedTokens", "token_weights_of"]

_COLUMNS, _CHARACTERS, _MOST_LINES = 2, 56, 8
_CHARACTER, _LINE = 0.088, 0.24  # inches
_GROUND = "Oranges"


class WeightedTokens(NamedTuple):
    """What each token reads as, and its weight."""

    pieces: Sequence[str]
    weights: Sequence[float]


def token_weights_of(panels: Mapping[str, WeightedTokens]) -> Any:
    """Draws the tokens of each panel line by line, the darker the more weight; long texts end early."""
    if not panels:
        raise InputError("A picture of tokens needs at least one text, got none.")
    laid = {title: _laid_out(tokens) for title, tokens in panels.items()}
    lines = max(place[1] for places in laid.values() for place in places) + 1
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure((columns * (_CHARACTERS * _CHARACTER + 0.3), rows * (lines * _LINE + 0.5)))
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (title, places) in zip(grid, laid.items(), strict=False):
        highest = max((weight for *_, weight in places), default=0.0) or 1.0
        for start, line, piece, weight in places:
            _draw(axes, start, line, piece, weight / highest)
        axes.set(xlim=(0, _CHARACTERS), ylim=(lines, 0))
        axes.set_title(literal(title), loc="left", fontsize=9, color=INK)
        axes.axis("off")
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return figure


def _draw(axes: Any, start: int, line: int, piece: str, share: float) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    colour = colormaps[_GROUND](0.85 * share)
    axes.add_patch(Rectangle((start, line + 0.05), len(piece), 0.9, facecolor=colour, linewidth=0))
    axes.text(
        start,
        line + 0.5,
        literal(piece),
        family="monospace",
        fontsize=8,
        va="center",
        color="white" if share > 0.75 else INK,
    )


def _laid_out(tokens: WeightedTokens) -> list[tuple[int, int, str, float]]:
    """Where each token begins: its column, its line, how it is shown, and its weight."""
    places = []
    column = line = 0
    for piece, weight in zip(tokens.pieces, tokens.weights, strict=True):
        shown = piece.replace("\n", "⏎").replace("\t", " ") or "·"
        if column and column + len(shown) > _CHARACTERS:
            column, line = 0, line + 1
            shown = shown.lstrip() or "·"
        if line == _MOST_LINES:
            break
        places.append((column, line, shown[:_CHARACTERS], weight))
        column += len(shown)
    return places
