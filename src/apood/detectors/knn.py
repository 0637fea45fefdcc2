"""Distance to the k-th nearest training sequence."""

from itertools import chain

import torch
from torch import Tensor

from apood.detectors.base import Detector
from apood.detectors.mean_pooling import Normalize, check_normalize, pooled_vectors, token_budget
from apood.detectors.parameters import whole_number
from apood.fitting.checkpoint import Checkpoint
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch
from apood.tokens.source import TokenSource

__all__ = ["KNN"]

_SPARE = 8  # candidates beyond k that the quick search keeps for the exact one
_CHUNK = 2**24  # distances held at once


class KNN(Detector):
    """s(Z) = -|z̄ - z̄₍ₖ₎|, the distance of the mean token to its k-th nearest neighbour in the training set.

    Sun et al. 2022 (arXiv 2204.06507), who normalise the features to length 1: `normalize="pooled"`.

    Departures: none in the score. The search is exact: a chunked float32 matrix product proposes
    k + 8 candidates, whose distances are then computed anew in float64, so that the rounding of the
    product never reaches a score. The vectors are kept around their centre, because far from the origin
    neither float32 nor a product would tell neighbours apart.

    Args:
        k: which neighbour.
        normalize: "pooled" as published, "tokens" or "none".
    """

    name = "knn"

    centre_: Tensor
    bank_: Tensor

    def __init__(self, k: int = 5, normalize: Normalize = "pooled") -> None:
        self.k = k
        self.normalize = normalize

    def check_parameters(self) -> None:
        """Refuses constructor arguments that make no sense."""
        check_normalize(self.normalize)
        whole_number("k", self.k, least=1)

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:  # noqa: ARG002
        if len(source) < self.k:
            raise InputError(f"k={self.k} neighbours need at least as many ID sequences, got {len(source)}.")
        batches = source.batches(token_budget(source.dim))
        vectors = (pooled_vectors(batch, self.normalize).cpu() for batch in batches)
        first = next(vectors)
        self.centre_ = first.mean(0)
        self.bank_ = torch.cat([(part - self.centre_).float() for part in chain([first], vectors)])

    def _score(self, tokens: TokenBatch) -> Tensor:
        vectors = (pooled_vectors(tokens, self.normalize).cpu() - self.centre_).float()
        rows = max(1, _CHUNK // len(self.bank_))
        return -torch.cat([self._distance(chunk) for chunk in torch.split(vectors, rows)])

    def _distance(self, vectors: Tensor) -> Tensor:
        candidates = min(self.k + _SPARE, len(self.bank_))
        # |x - y|² = |y|² - 2 x·y, up to |x|², which does not change the order
        rough = self.bank_.square().sum(1) - 2 * vectors @ self.bank_.T
        nearest = self.bank_[rough.topk(candidates, largest=False).indices].double()
        exact = torch.linalg.vector_norm(nearest - vectors.double()[:, None], dim=2)
        distance: Tensor = exact.kthvalue(self.k).values
        return distance
