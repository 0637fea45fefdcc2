"""Distance to the k-th nearest training sequence in the Mahalanobis metric."""

from torch import Tensor

from apood.detectors.knn import KNN
from apood.detectors.shared.device_copies import copy_on
from apood.detectors.shared.mean_pooling import (
    EIGENVALUE_FLOOR,
    Normalize,
    inverse_root,
    moments,
    pooled_vectors,
    warn_of_few,
)
from apood.fitting.checkpoint import Checkpoint
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch
from apood.tokens.source import TokenSource

__all__ = ["MahalanobisKNN"]


class MahalanobisKNN(KNN):
    """s(Z) = -|Σ^(-1/2) (z̄ - z̄₍ₖ₎)|: the nearest neighbour, with every direction measured by its usual spread.

    Not a published method. It joins the two classical ones: Mahalanobis (1936) knows that a small step in
    a quiet direction says more than a large one in a busy direction, but has one centre only; nearest
    neighbours (Sun et al. 2022, arXiv 2204.06507) fit any shape, but weigh all directions alike. Σ is the
    covariance of the mean-pooled ID sequences; its eigenvalues are raised to 10⁻⁴ of their mean.

    Args:
        k: which neighbour.
        normalize: "tokens", "pooled" or "none".
    """

    name = "mahalanobis-knn"

    whitening_: Tensor

    def __init__(self, k: int = 1, normalize: Normalize = "tokens") -> None:
        super().__init__(k, normalize)

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:  # noqa: ARG002
        if len(source) < max(self.k, 2):
            least = max(self.k, 2)
            raise InputError(f"A covariance and {self.k} neighbours need {least} ID sequences, got {len(source)}.")
        _, self.centre_, covariance = moments(source, self.normalize)
        self.whitening_ = inverse_root(covariance, EIGENVALUE_FLOOR)
        self._keep(source)
        warn_of_few(source)

    def _vectors(self, tokens: TokenBatch) -> Tensor:
        vectors = pooled_vectors(tokens, self.normalize)
        centre, whitening = (copy_on(vectors.device, learnt) for learnt in (self.centre_, self.whitening_))
        return ((vectors - centre) @ whitening).float()
