"""Relative Mahalanobis distance of the mean-pooled tokens."""

from typing import Annotated, Any, get_args

import torch
from torch import Tensor

from apood.detectors.contract.base import Detector
from apood.detectors.shared.explanation import Explanation
from apood.detectors.shared.mean_pooling import Normalize, compute_moments, pool_means, share_means
from apood.fitting.optimise import Checkpoint
from apood.support.checks import check_choice, check_number
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch, dtype_name
from apood.tokens.source import TokenSource

__all__ = ["RelativeMahalanobis"]

_SINGULAR = 1e-13  # smallest eigenvalue relative to the largest; a smaller one is a rounding error of float64


class RelativeMahalanobis(Detector):
    """Relative Mahalanobis: how much nearer the mean token is to the ID sequences than to the AUX sequences.

        s(Z) = d²_AUX(z̄) - d²_ID(z̄)

    Ren et al. 2023 (arXiv 2209.15558), whose relative distance is d²_ID - d²_AUX. Both are Mahalanobis distances,
    d²(z̄) = (z̄ - μ)ᵀ Σ⁻¹ (z̄ - μ), each with the mean and the covariance of its own mean-pooled sequences.

    Departures: Σ is the covariance divided by the number of sequences, in float64, in one streaming pass. It is
    replaced by (1 - α) Σ + α tr(Σ)/D I, with α the `shrinkage`. As published, α is 0. Then Σ has no inverse, and `fit`
    refuses it, unless there are more than D sequences of either kind and the encoder does not end in a layer norm,
    which confines the tokens to a hyperplane. The AP-OOD paper leaves the method out for fewer than 1,024 AUX sequences
    for this reason. The default of 0.1 works with any data. OOD texts that are unlike the AUX sequences may still be
    missed.

    Args:
        normalize: "none" as published; "tokens" or "pooled" to compare directions only.
        shrinkage: α in [0, 1], for both covariances; 0 as published.

    Attributes:
        id_mean_: mean `[D]` of the mean-pooled ID sequences, float64.
        id_whitening_: Σ^(-1/2) `[D, D]` of the ID sequences, float64.
        aux_mean_: mean `[D]` of the mean-pooled AUX sequences, float64.
        aux_whitening_: Σ^(-1/2) `[D, D]` of the AUX sequences, float64.

    Examples:
        >>> import torch
        >>> from apood import RelativeMahalanobis
        >>> generator = torch.Generator().manual_seed(0)
        >>> inside = [torch.randn(5, 4, generator=generator) for _ in range(50)]
        >>> outside = [torch.randn(5, 4, generator=generator) + 2 for _ in range(50)]
        >>> detector = RelativeMahalanobis().fit(inside, aux=outside)
        >>> detector.score_samples([torch.zeros(5, 4), torch.full((5, 4), 2.0)]) > 0
        array([ True, False])
    """

    name = "relative-mahalanobis"
    pools_tokens = True
    explains = True
    propagates_nonfinite = True
    aux = "required"

    id_mean_: Annotated[Tensor, "D"]
    id_whitening_: Annotated[Tensor, "D D"]
    aux_mean_: Annotated[Tensor, "D"]
    aux_whitening_: Annotated[Tensor, "D D"]

    def __init__(self, normalize: Normalize = "none", shrinkage: float = 0.1) -> None:
        self.normalize = normalize
        self.shrinkage = shrinkage

    def check_parameters(self) -> None:
        """Raise `InputError` if a constructor argument is not allowed."""
        check_choice("normalize", self.normalize, get_args(Normalize))
        check_number("shrinkage", self.shrinkage, least=0, most=1)

    def hyperparameter_space(self, dim: int, *, supervised: bool) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return every normalization with shrinkages that suit any number of AUX sequences."""
        return [{"shrinkage": alpha, "normalize": how} for alpha in (0.01, 0.1, 0.5) for how in get_args(Normalize)]

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:  # noqa: ARG002
        assert aux is not None, "fit requires AUX sequences"
        for data, role in ((source, "ID"), (aux, "AUX")):
            self._refuse_too_few(len(data), source.dim, role)
        self.id_mean_, self.id_whitening_ = self._fit_gaussian(source, "ID")
        self.aux_mean_, self.aux_whitening_ = self._fit_gaussian(aux, "AUX")

    def _score(self, tokens: TokenBatch) -> Tensor:
        vectors = pool_means(tokens, self.normalize)
        own, other = (self._whiten(vectors, role)[0].square().sum(1) for role in ("id", "aux"))
        return other - own

    def _explain(self, tokens: TokenBatch) -> Explanation:
        vectors = pool_means(tokens, self.normalize)
        (own, own_root), (other, other_root) = (self._whiten(vectors, role) for role in ("id", "aux"))
        totals = own.square().sum(1) - other.square().sum(1)
        return share_means(tokens, self.normalize, own @ own_root - other @ other_root, totals)

    def _whiten(self, vectors: Tensor, role: str) -> tuple[Tensor, Tensor]:
        """Return Σ^(-1/2) (z̄ - μ) of the ID or the AUX sequences, and Σ^(-1/2)."""
        mean, whitening = (self._copy_on(vectors.device, f"{role}_{name}_") for name in ("mean", "whitening"))
        return (vectors - mean) @ whitening, whitening

    def _refuse_too_few(self, sequences: int, dim: int, role: str) -> None:
        if sequences < 2:
            raise InputError(f"A covariance needs at least 2 {role} sequences, got {sequences}.")
        if sequences <= dim and self.shrinkage == 0:
            raise InputError(
                f"A covariance in {dim} dimensions has an inverse only with more than {dim} {role} sequences, "
                f"got {sequences}; add sequences, or set shrinkage, for example to 0.5."
            )

    def _fit_gaussian(self, source: TokenSource, role: str) -> tuple[Tensor, Tensor]:
        """Return the mean, and Σ^(-1/2)."""
        _, mean, covariance = compute_moments(source, self.normalize)
        values, vectors = torch.linalg.eigh(covariance)
        # shrinkage moves the eigenvalues towards their mean and keeps the eigenvectors
        values = (1 - self.shrinkage) * values + self.shrinkage * values.mean()
        # rounded tokens do not lie exactly in a hyperplane; shrinkage, even a small one, limits how much that counts
        rounding = torch.finfo(source.dtype).eps ** 2 if self.shrinkage == 0 else 0.0
        if float(values[0]) <= max(_SINGULAR, rounding) * float(values[-1]):
            raise InputError(
                f"The covariance of the {role} sequences has no inverse, because they all lie in a hyperplane, up to "
                f"the rounding of {dtype_name(source.dtype)} (as after a layer norm); set shrinkage, for example 0.01."
            )
        return mean, (vectors / values.sqrt()) @ vectors.T
