"""Figures 1 and 2 of the paper, drawn from the toy experiment."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apood.support.errors import ApoodError
from apood.support.files import atomic_file

__all__ = ["PlaneMap", "Sequences", "draw_attention", "draw_averaging"]

Floats = NDArray[np.floating[Any]]

_ID_COLOUR, _OOD_COLOUR = "#2a6f97", "#d1603d"
_SHOWN = 100  # sequences of each kind; more would hide each other
_TOKEN_REACH = 1.7  # the tokens lie within this of the origin


@dataclass(frozen=True)
class Sequences:
    """ID and OOD sequences of two tokens in the plane, both `[N, 2, 2]`."""

    id: Floats
    ood: Floats


@dataclass(frozen=True)
class PlaneMap:
    """A quantity over a square of the plane: `values[i, j]` at x = `sides[i]`, y = `sides[j]`."""

    sides: Floats
    values: Floats


def draw_averaging(path: Path, sequences: Sequences, scores: PlaneMap, auroc: float) -> None:
    """Figure 1: the sequences, their means, and the Mahalanobis score over the plane of means."""
    figure, (left, centre, right) = _panels()
    _draw_sequences(left, sequences)
    left.legend(loc="upper center", ncols=2, fontsize=9)
    _label(left, "ID and OOD sequences", "tokens; a line joins the two of a sequence", _TOKEN_REACH)
    _draw_means(centre, sequences)
    _label(centre, "Their means are alike", "mean of a sequence", _TOKEN_REACH)
    _draw_map(right, scores, lowest=float(np.quantile(scores.values, 0.25)), label="score", colours="YlGnBu_r")
    _draw_means(right, sequences)
    _label(right, f"Mahalanobis score: AUROC {auroc:.1f}%", "mean of a sequence", _TOKEN_REACH)
    _save(figure, path)


def draw_attention(
    path: Path, sequences: Sequences, losses: PlaneMap, query: Floats, scores: PlaneMap, auroc: float
) -> None:
    """Figure 2: the loss over the plane of queries, the learnt query `[2]`, and the AP-OOD score of {z, -z} over z."""
    figure, (left, centre, right) = _panels()
    reach = float(losses.sides[-1])
    _draw_map(left, losses, highest=float(np.quantile(losses.values, 0.85)), label="loss", colours="viridis")
    _label(left, "The loss has two main basins", "query w", reach)
    _draw_sequences(centre, sequences)
    for axes in (left, centre):
        axes.scatter(*query, marker="*", s=260, color="black", edgecolor="white", zorder=4, label="learnt w")
    centre.legend(loc="upper left", fontsize=9)
    _label(centre, "The learnt w lies in one of them", "tokens and query w", reach)
    _draw_map(right, scores, lowest=float(np.quantile(scores.values, 0.1)), label="score", colours="YlGnBu_r")
    _draw_sequences(right, sequences)
    _label(right, f"AP-OOD score: AUROC {auroc:.1f}%", "z; the map scores the sequence {z, -z}", _TOKEN_REACH)
    _save(figure, path)


def _panels() -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure  # without pyplot, which keeps every figure and needs a display
    except ImportError as error:
        raise ApoodError("Figures need matplotlib, which `pip install 'apood[report]'` brings.") from error
    figure = Figure(figsize=(13.5, 4.4), layout="constrained")
    return figure, figure.subplots(1, 3)


def _kinds(sequences: Sequences) -> list[tuple[str, str, Floats]]:
    return [("ID", _ID_COLOUR, sequences.id[:_SHOWN]), ("OOD", _OOD_COLOUR, sequences.ood[:_SHOWN])]


def _draw_sequences(axes: Any, sequences: Sequences) -> None:
    for name, colour, shown in _kinds(sequences):
        axes.plot(*shown.transpose(2, 1, 0), color=colour, linewidth=0.5, alpha=0.25, zorder=2)
        axes.scatter(*shown.reshape(-1, 2).T, s=9, color=colour, zorder=3, label=name)


def _draw_means(axes: Any, sequences: Sequences) -> None:
    for name, colour, shown in _kinds(sequences):
        axes.scatter(*shown.mean(1).T, s=9, color=colour, alpha=0.7, zorder=3, label=name)


def _draw_map(
    axes: Any, plane: PlaneMap, *, label: str, colours: str, lowest: float | None = None, highest: float | None = None
) -> None:
    """Values beyond `lowest` and `highest` look like these, so that the steep rim leaves colours for the middle."""
    values = np.clip(plane.values, lowest, highest)
    shown = axes.contourf(plane.sides, plane.sides, values.T, levels=24, cmap=colours, alpha=0.85)
    axes.figure.colorbar(shown, ax=axes, label=label, shrink=0.85, format="%.1f")


def _label(axes: Any, title: str, below: str, reach: float) -> None:
    axes.set_title(title, loc="left", fontsize=12)
    axes.set(xlabel=below, xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    axes.tick_params(labelsize=9)


def _save(figure: Any, path: Path) -> None:
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
