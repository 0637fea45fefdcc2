"""Mahalanobis distance of the mean-pooled tokens."""

from typing import Annotated, Any, get_args

from torch import Tensor

from apood.detectors.contract.base import Detector
from apood.detectors.contract.refinable import Measured, Refinable, Remembered
from apood.detectors.shared.explanation import Explanation
from apood.detectors.shared.log_distances import compute_floored_log
from apood.detectors.shared.mean_pooling import (
    EIGENVALUE_FLOOR,
    Normalize,
    compute_covariance,
    compute_moments,
    inverse_root,
    measure_spread,
    merge_spreads,
    pool_means,
    share_means,
    warn_of_few,
)
from apood.fitting.optimise import Checkpoint
from apood.support.checks import check_choice, check_number
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch
from apood.tokens.source import TokenSource, trim_ends

__all__ = ["Mahalanobis"]


class Mahalanobis(Refinable, Detector):
    """Mahalanobis: minus the squared distance of the mean token to the centre, each direction divided by its spread.

        s(Z) = -(z̄ - μ)ᵀ Σ⁻¹ (z̄ - μ), with z̄ the mean token of the sequence

    Lee et al. 2018 (arXiv 1807.03888) for classifiers, Ren et al. 2023 (arXiv 2209.15558) for conditional language
    models: one Gaussian over the mean-pooled training sequences.

    Departures: Σ is the covariance divided by N, in float64, in one streaming pass. Eigenvalues below
    `eigenvalue_floor` times their mean are raised to it, because Σ is singular after a layer norm and for fewer than D
    sequences; a well-conditioned Σ is not changed.

    Args:
        normalize: "none" as published; "tokens" or "pooled" to compare directions only.
        eigenvalue_floor: smallest eigenvalue allowed, relative to the mean one.

    Attributes:
        mean_: μ `[D]`, float64.
        whitening_: Σ^(-1/2) `[D, D]`, float64.

    Examples:
        >>> import torch
        >>> from apood import Mahalanobis
        >>> corners = [torch.tensor([[x, y]]) for x in (-2.0, 2.0) for y in (-1.0, 1.0)]
        >>> Mahalanobis().fit(corners).score_samples([torch.tensor([[0.0, 0.0]]), torch.tensor([[4.0, 1.0]])])
        array([-0., -5.])
    """

    name = "mahalanobis"
    pools_tokens = True
    explains = True
    propagates_nonfinite = True

    mean_: Annotated[Tensor, "D"]
    whitening_: Annotated[Tensor, "D D"]

    def __init__(self, normalize: Normalize = "none", eigenvalue_floor: float = EIGENVALUE_FLOOR) -> None:
        self.normalize = normalize
        self.eigenvalue_floor = eigenvalue_floor

    def check_parameters(self) -> None:
        """Raise `InputError` if a constructor argument is not allowed."""
        check_choice("normalize", self.normalize, get_args(Normalize))
        check_number("eigenvalue_floor", self.eigenvalue_floor, above=0, most=1)

    def hyperparameter_space(self, dim: int, *, supervised: bool) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return every normalization."""
        return [{"normalize": normalize} for normalize in get_args(Normalize)]

    def log_distances(self, scores: Tensor) -> Tensor:
        """Return the logarithms of the squared distances."""
        return compute_floored_log(-scores)

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:  # noqa: ARG002
        if len(source) < 2:
            raise InputError("A covariance needs at least 2 ID sequences, got 1.")
        _, self.mean_, covariance = compute_moments(source, self.normalize)
        self.whitening_ = inverse_root(covariance, self.eigenvalue_floor)
        warn_of_few(source)

    def measure(self, tokens: TokenBatch) -> Measured:
        """Return number, mean and scatter of the pooled vectors."""
        return measure_spread(trim_ends(tokens, first=self.skips_first_, last=self.skips_last_), self.normalize)

    def merge_measured(self, first: Measured, second: Measured) -> Measured:
        """Return number, mean and scatter of a union."""
        return merge_spreads(first, second)

    def refine(self, measured: Measured, remembered: Remembered) -> None:  # noqa: ARG002
        """Replace mean and covariance by those of everything: the result is the fit on everything."""
        _, self.mean_, covariance = compute_covariance(measured)
        self.whitening_ = inverse_root(covariance, self.eigenvalue_floor)

    def _score(self, tokens: TokenBatch) -> Tensor:
        vectors = pool_means(tokens, self.normalize)
        mean, whitening = (self._copy_on(vectors.device, name) for name in ("mean_", "whitening_"))
        return -((vectors - mean) @ whitening.T).square().sum(1)

    def _explain(self, tokens: TokenBatch) -> Explanation:
        vectors = pool_means(tokens, self.normalize)
        mean, whitening = (self._copy_on(vectors.device, name) for name in ("mean_", "whitening_"))
        whitened = (vectors - mean) @ whitening.T
        return share_means(tokens, self.normalize, whitened @ whitening, whitened.square().sum(1))
