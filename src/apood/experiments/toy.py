"""The paper's toy experiment (figures 1 and 2): averaging hides an anomaly that attention finds.

Every sequence has two tokens in the plane. ID sequences have one near (1, 1) and one near (-1, -1), OOD sequences one
near (-1, 1) and one near (1, -1): their means are equal, their tokens are not. AP-OOD has a single query w and the
Euclidean similarity.

The loss has two main basins, two minor ones across the line of the ID tokens, and more if there are few sequences. So
we take 10,000 sequences, start from several w and keep the one with the lowest training loss. The main basins lie in
the direction of the ID tokens but further out: the term -log |w|² rewards a longer w until the noise, or a prototype
that moves away from the tokens with it, costs as much. A larger β keeps them closer, but needs a larger sample.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.ap_ood.training import log_norms, squared_distances
from apood.detectors.mahalanobis import Mahalanobis
from apood.evaluation.metrics import auroc
from apood.pooling import attention_pool
from apood.report.canvas import new_figure, save_figure
from apood.support.files import refuse_unwritable, write_json
from apood.support.progress import track
from apood.tokens.batch import TokenBatch

__all__ = ["run_toy"]

_SIGMA = 0.1
_ID_CENTRES, _OOD_CENTRES = ((1.0, 1.0), (-1.0, -1.0)), ((-1.0, 1.0), (1.0, -1.0))
_TRAIN, _TEST = 10_000, 1_000
_BETA = 12.0
_STARTS = 6
_TOKEN_PLANE, _QUERY_PLANE = 2.0, 4.0  # how far the maps reach from the origin
_GRID = 64
_QUERIES_AT_ONCE = 512
_ID_COLOUR, _OOD_COLOUR = "#2a6f97", "#d1603d"
_SHOWN = 100  # sequences of each kind; more would hide each other
_TOKEN_REACH = 1.7  # all tokens are within this distance of the origin

_Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class _Sequences:
    """ID and OOD sequences of two tokens in the plane, both `[N, 2, 2]`."""

    id: _Floats
    ood: _Floats


@dataclass(frozen=True)
class _PlaneMap:
    """A function on a square of the plane: `values[i, j]` at x = `sides[i]`, y = `sides[j]`."""

    sides: _Floats
    values: _Floats


def run_toy(out: Path, seed: int = 0) -> dict[str, Any]:
    """Write figure1.png, figure2.png and results.json to the folder `out`, and return the results."""
    out = Path(out)
    refuse_unwritable(out / "results.json")
    generator = torch.Generator().manual_seed(int(seed))
    train = _sample_sequences(_ID_CENTRES, _TRAIN, generator)
    id_test = _sample_sequences(_ID_CENTRES, _TEST, generator)
    ood_test = _sample_sequences(_OOD_CENTRES, _TEST, generator)

    averaging = Mahalanobis().fit(train)
    attention = _fit_best_start(train, seed)
    query = attention.queries_.cpu()
    percent = {
        detector.name: 100 * auroc(detector.score_samples(id_test), detector.score_samples(ood_test)).value
        for detector in (averaging, attention)
    }

    sequences = _Sequences(_as_array(id_test), _as_array(ood_test))
    points = _make_grid(_TOKEN_PLANE)
    means = _as_map(_TOKEN_PLANE, averaging.score_samples(TokenBatch.from_padded(points[:, None])))
    _draw_averaging(out / "figure1.png", sequences, means, percent[averaging.name])
    # {z, -z} has the mean 0 for every z, so mean pooling gives the whole map one score.
    pairs = _as_map(_TOKEN_PLANE, attention.score_samples(TokenBatch.from_padded(torch.stack([points, -points], 1))))
    losses = _as_map(_QUERY_PLANE, _compute_losses(train, _make_grid(_QUERY_PLANE)[:, None]).numpy())
    _draw_attention(out / "figure2.png", sequences, losses, query.flatten().numpy(), pairs, percent[attention.name])

    results = {
        "seed": seed,
        "beta": _BETA,
        "starts": _STARTS,
        "query": query.flatten().tolist(),
        "loss": float(_compute_losses(train, query)),
        "auroc_percent": percent,
    }
    write_json(out / "results.json", results)
    return results


def _make_grid(reach: float) -> Tensor:
    """Return points of a square around the origin; their even number per side leaves out w = 0, where log |w|² = -∞."""
    sides = torch.linspace(-reach, reach, _GRID)
    return torch.cartesian_prod(sides, sides)


def _as_map(reach: float, values: NDArray[Any]) -> _PlaneMap:
    return _PlaneMap(np.linspace(-reach, reach, _GRID), values.reshape(_GRID, _GRID))


def _as_array(batch: TokenBatch) -> NDArray[Any]:
    return batch.values.reshape(len(batch), 2, 2).numpy()


def _sample_sequences(centres: tuple[tuple[float, float], ...], count: int, generator: torch.Generator) -> TokenBatch:
    noise = torch.randn(count, len(centres), 2, generator=generator)
    return TokenBatch.from_padded(torch.tensor(centres) + _SIGMA * noise)


def _fit_best_start(train: TokenBatch, seed: int) -> APOOD:
    """Return the detector with the lowest loss on its training data; OOD data is not used."""
    fits = []
    for start in track(range(_STARTS), "fit", _STARTS):
        detector = APOOD(
            heads=1, queries=1, beta=_BETA, similarity="euclidean", recipe="paper", seed=seed * _STARTS + start
        )
        fits.append(detector.fit(train))
    return min(fits, key=lambda detector: float(_compute_losses(train, detector.queries_)))


def _compute_losses(train: TokenBatch, queries: Tensor) -> Tensor:
    """Return the training loss of each query `[M, 1, D]` alone: the mean of d² minus log |w|²."""
    with torch.inference_mode():
        parts = [
            squared_distances(attention_pool(train, some, _BETA, "euclidean")).mean(0) - log_norms(some)
            for some in torch.split(queries, _QUERIES_AT_ONCE)
        ]
    return torch.cat(parts)


def _draw_averaging(path: Path, sequences: _Sequences, scores: _PlaneMap, percent: float) -> None:
    """Draw figure 1: the sequences, their means, and the Mahalanobis score over the plane of means."""
    figure = new_figure((13.5, 4.4))
    left, centre, right = figure.subplots(1, 3)
    _plot_sequences(left, sequences)
    left.legend(loc="upper center", ncols=2, fontsize=9)
    _label(left, "ID and OOD sequences", "tokens; a line joins those of a sequence", _TOKEN_REACH)
    _plot_means(centre, sequences)
    _label(centre, "Their means are equal", "mean of a sequence", _TOKEN_REACH)
    _plot_map(right, scores, lowest=float(np.quantile(scores.values, 0.25)), label="score", colours="YlGnBu_r")
    _plot_means(right, sequences)
    _label(right, f"Mahalanobis score: AUROC {percent:.1f}%", "mean of a sequence", _TOKEN_REACH)
    save_figure(figure, path)


def _draw_attention(
    path: Path, sequences: _Sequences, losses: _PlaneMap, query: _Floats, scores: _PlaneMap, percent: float
) -> None:
    """Draw figure 2: the loss over the plane of queries, the learnt query `[2]`, and the AP-OOD score of {z, -z}."""
    figure = new_figure((13.5, 4.4))
    left, centre, right = figure.subplots(1, 3)
    reach = float(losses.sides[-1])
    _plot_map(left, losses, highest=float(np.quantile(losses.values, 0.85)), label="loss", colours="viridis")
    _label(left, "The loss has two main basins", "query w", reach)
    _plot_sequences(centre, sequences)
    for axes in (left, centre):
        axes.scatter(*query, marker="*", s=260, color="black", edgecolor="white", zorder=4, label="learnt w")
    centre.legend(loc="upper left", fontsize=9)
    _label(centre, "The learnt w is in one of them", "tokens and query w", reach)
    _plot_map(right, scores, lowest=float(np.quantile(scores.values, 0.1)), label="score", colours="YlGnBu_r")
    _plot_sequences(right, sequences)
    _label(right, f"AP-OOD score: AUROC {percent:.1f}%", "z; the map scores the sequence {z, -z}", _TOKEN_REACH)
    save_figure(figure, path)


def _list_kinds(sequences: _Sequences) -> list[tuple[str, str, _Floats]]:
    return [("ID", _ID_COLOUR, sequences.id[:_SHOWN]), ("OOD", _OOD_COLOUR, sequences.ood[:_SHOWN])]


def _plot_sequences(axes: Any, sequences: _Sequences) -> None:
    for name, colour, shown in _list_kinds(sequences):
        axes.plot(*shown.transpose(2, 1, 0), color=colour, linewidth=0.5, alpha=0.25, zorder=2)
        axes.scatter(*shown.reshape(-1, 2).T, s=9, color=colour, zorder=3, label=name)


def _plot_means(axes: Any, sequences: _Sequences) -> None:
    for name, colour, shown in _list_kinds(sequences):
        axes.scatter(*shown.mean(1).T, s=9, color=colour, alpha=0.7, zorder=3, label=name)


def _plot_map(
    axes: Any, plane: _PlaneMap, *, label: str, colours: str, lowest: float | None = None, highest: float | None = None
) -> None:
    """Draw a map; values are clipped to `lowest` and `highest`, so that a steep rim leaves colours for the middle."""
    values = np.clip(plane.values, lowest, highest)
    shown = axes.contourf(plane.sides, plane.sides, values.T, levels=24, cmap=colours, alpha=0.85)
    axes.figure.colorbar(shown, ax=axes, label=label, shrink=0.85, format="%.1f")


def _label(axes: Any, title: str, below: str, reach: float) -> None:
    axes.set_title(title, loc="left", fontsize=12)
    axes.set(xlabel=below, xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    axes.tick_params(labelsize=9)
