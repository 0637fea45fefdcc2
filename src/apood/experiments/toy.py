"""The paper's toy experiment (figures 1 and 2): averaging hides an anomaly that attention finds.

Every sequence has two tokens in the plane. ID sequences have one near (1, 1) and one near (-1, -1), OOD sequences one
near (-1, 1) and one near (1, -1): their means are the same, their tokens are not. AP-OOD has a single query w and the
euclidean similarity.

What the paper leaves open, and what we found: the loss also has two minor basins, across the ID tokens' line, and with
few sequences more that no larger sample has. So we take 10,000 sequences, start from several w and keep the one
whose training loss is lowest. The basins lie where the ID tokens are, only further out: the term -log |w|² rewards a
longer w until the noise, or a prototype that has moved away from the tokens with it, costs as much. A larger β keeps
them closer, but then needs a larger sample.
"""

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
from apood.experiments.toy_figures import PlaneMap, Sequences, draw_attention, draw_averaging
from apood.pooling import attention_pool
from apood.support.files import refuse_unwritable, write_json
from apood.support.progress import track
from apood.tokens.batch import TokenBatch

__all__ = ["run_toy"]

_SIGMA = 0.1
_ID_CENTRES, _OOD_CENTRES = ((1.0, 1.0), (-1.0, -1.0)), ((-1.0, 1.0), (1.0, -1.0))
_TRAIN, _TEST = 10_000, 1_000
_BETA = 12.0
_STARTS = 6
_TOKEN_PLANE, _QUERY_PLANE = 2.0, 4.0  # the maps reach so far from the origin
_GRID = 64
_QUERIES_AT_ONCE = 512


def run_toy(out: Path, seed: int = 0) -> dict[str, Any]:
    """Writes figure1.png, figure2.png and results.json to the folder `out` and returns the results."""
    out = Path(out)
    refuse_unwritable(out / "results.json")
    generator = torch.Generator().manual_seed(seed)
    train = _sequences(_ID_CENTRES, _TRAIN, generator)
    id_test = _sequences(_ID_CENTRES, _TEST, generator)
    ood_test = _sequences(_OOD_CENTRES, _TEST, generator)

    averaging = Mahalanobis().fit(train)
    attention = _best_of_starts(train, seed)
    query = attention.queries_.cpu()
    percent = {
        detector.name: 100 * auroc(detector.score_samples(id_test), detector.score_samples(ood_test)).value
        for detector in (averaging, attention)
    }

    sequences = Sequences(_as_array(id_test), _as_array(ood_test))
    points = _grid(_TOKEN_PLANE)
    means = _map(_TOKEN_PLANE, averaging.score_samples(TokenBatch.from_padded(points[:, None])))
    draw_averaging(out / "figure1.png", sequences, means, percent[averaging.name])
    # {z, -z} has the mean 0 for every z: to mean pooling all of this map is one point
    pairs = _map(_TOKEN_PLANE, attention.score_samples(TokenBatch.from_padded(torch.stack([points, -points], 1))))
    losses = _map(_QUERY_PLANE, _losses(train, _grid(_QUERY_PLANE)[:, None]).numpy())
    draw_attention(out / "figure2.png", sequences, losses, query.flatten().numpy(), pairs, percent[attention.name])

    results = {
        "seed": seed,
        "beta": _BETA,
        "starts": _STARTS,
        "query": query.flatten().tolist(),
        "loss": float(_losses(train, query)),
        "auroc_percent": percent,
    }
    write_json(out / "results.json", results)
    return results


def _grid(reach: float) -> Tensor:
    """Points of a square around the origin; an even number a side leaves out w = 0, where log |w|² is not finite."""
    sides = torch.linspace(-reach, reach, _GRID)
    return torch.cartesian_prod(sides, sides)


def _map(reach: float, values: NDArray[Any]) -> PlaneMap:
    return PlaneMap(np.linspace(-reach, reach, _GRID), values.reshape(_GRID, _GRID))


def _as_array(batch: TokenBatch) -> NDArray[Any]:
    return batch.values.reshape(len(batch), 2, 2).numpy()


def _sequences(centres: tuple[tuple[float, float], ...], count: int, generator: torch.Generator) -> TokenBatch:
    noise = torch.randn(count, len(centres), 2, generator=generator)
    return TokenBatch.from_padded(torch.tensor(centres) + _SIGMA * noise)


def _best_of_starts(train: TokenBatch, seed: int) -> APOOD:
    """The detector with the lowest loss on its training data; no OOD data is looked at."""
    fits = []
    for start in track(range(_STARTS), "fit", _STARTS):
        detector = APOOD(
            heads=1, queries=1, beta=_BETA, similarity="euclidean", recipe="paper", seed=seed * _STARTS + start
        )
        fits.append(detector.fit(train))
    return min(fits, key=lambda detector: float(_losses(train, detector.queries_)))


def _losses(train: TokenBatch, queries: Tensor) -> Tensor:
    """The training loss of each query [M, 1, D] alone: mean of d² less log |w|²."""
    with torch.inference_mode():
        parts = [
            squared_distances(attention_pool(train, some, _BETA, "euclidean")).mean(0) - log_norms(some)
            for some in torch.split(queries, _QUERIES_AT_ONCE)
        ]
    return torch.cat(parts)
