"""What the detectors on mean-pooled tokens share: one vector a sequence, and its moments over a corpus."""

import warnings
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from apood.pooling import Preprocessing, mean_pool
from apood.support.errors import FitWarning, InputError
from apood.support.progress import progress_bar
from apood.tokens.batch import TokenBatch
from apood.tokens.source import TokenSource, token_budget

__all__ = [
    "EIGENVALUE_FLOOR",
    "Moments",
    "Normalize",
    "Standard",
    "compute_moments",
    "describe_shortage",
    "inverse_root",
    "pool_means",
    "refuse_no_spread",
    "standardize",
    "standardize_by",
    "warn_of_few",
]

Normalize = Literal["tokens", "pooled", "none"]
"""What is brought to length 1: each token before pooling, the pooled vector, or nothing."""

EIGENVALUE_FLOOR = 1e-4
"""Smallest eigenvalue of a covariance that is believed, relative to the mean one."""

_ROUNDING = 1e-24  # relative variance that float64 rounding alone leaves of equal vectors, with a margin


def pool_means(tokens: TokenBatch, normalize: Normalize) -> Tensor:
    """The mean-pooled sequences `[N, D]`, float64."""
    means = mean_pool(tokens, Preprocessing(unit=normalize == "tokens"))
    return Preprocessing(unit=normalize == "pooled").apply(means)


class Moments(NamedTuple):
    """Mean `[D]` and covariance `[D, D]` (divided by the count) of the pooled vectors of a corpus, float64."""

    sequences: int
    mean: Tensor
    covariance: Tensor


def compute_moments(source: TokenSource, normalize: Normalize) -> Moments:
    """Moments in one streaming pass, by Chan's pairwise update, which does not cancel."""
    count = 0
    mean = torch.zeros(source.dim, dtype=torch.float64)
    scatter = torch.zeros(source.dim, source.dim, dtype=torch.float64)
    with progress_bar(len(source), "covariance", "seq") as progress:
        for batch in source.batches(token_budget(source.dim)):
            x = pool_means(batch, normalize).cpu()
            delta = x.mean(0) - mean
            centred = x - x.mean(0)
            share = len(x) / (count + len(x))
            scatter += centred.T @ centred + torch.outer(delta, delta) * (count * share)
            mean += delta * share
            count += len(x)
            progress.update(len(x))
    covariance = scatter / count
    refuse_no_spread(covariance.diagonal(), mean)
    return Moments(count, mean, covariance)


def refuse_no_spread(variance: Tensor, centre: Tensor) -> None:
    """Refuses a corpus whose pooled vectors do not differ: `variance [D]` of them, which lie near `centre [D]`."""
    if float(variance.sum()) <= _ROUNDING * float(centre @ centre):
        raise InputError("All pooled sequences are the same vector: there is no spread to measure distances against.")


def describe_shortage(sequences: int, dim: int) -> str | None:
    """What to say where a covariance is singular for want of sequences."""
    if sequences >= dim:
        return None
    return (
        f"There are fewer ID sequences ({sequences}) than token dimensions ({dim}), too few to know the usual "
        "spread in every direction; add sequences, or use knn, which needs no covariance."
    )


def warn_of_few(source: TokenSource) -> None:
    """Issues a `FitWarning` of `describe_shortage`; to be called by `_fit` itself."""
    if (message := describe_shortage(len(source), source.dim)) is not None:
        warnings.warn(message, FitWarning, stacklevel=4)


def inverse_root(covariance: Tensor, floor: float) -> Tensor:
    """Σ^(-1/2), the symmetric root of the inverse.

    Of all P with Pᵀ P = Σ⁻¹ only the symmetric one does not depend on the signs of the eigenvectors and
    on their choice in a null space, which change with the number of threads; a fit that resumes elsewhere
    must find the space it left.

    Eigenvalues below `floor` times their mean are raised to it. A covariance is singular when there
    are fewer sequences than dimensions or when the encoder ends in a layer norm that confines its
    tokens to a hyperplane; without the floor such a direction would decide every score.
    """
    values, vectors = torch.linalg.eigh(covariance)
    root: Tensor = (vectors / values.clamp_min(floor * float(values.mean())).sqrt()) @ vectors.T
    return root


_ROWS = 4096  # vectors converted to float64 at once
_FLOOR = 1e-6  # variance of a dimension, relative to the mean one; below it lies rounding, which must decide nothing


class Standard(NamedTuple):
    """Mean and spread `[D]` of each dimension over a corpus, float64."""

    mean: Tensor
    scale: Tensor

    def apply(self, vectors: Tensor) -> Tensor:
        """(x - mean) / scale, float64."""
        return (vectors.double() - self.mean) / self.scale


def standardize(source: TokenSource, normalize: Normalize) -> tuple[Tensor, Standard]:
    """The vectors `[N, D]`, float32, each dimension with mean 0 and variance 1, and what brought them there.

    Read in one pass. Until the mean is known the vectors are kept around the first of them, because far from
    the origin float32 would not tell them apart; neither depends on where the batches are cut.
    """
    origin = pool_means(source.select([0]), normalize).cpu()[0]
    vectors = _collected(source, normalize, Standard(origin, torch.ones_like(origin)), "ID")
    shift = torch.stack([part.double().sum(0) for part in torch.split(vectors, _ROWS)]).sum(0) / len(vectors)
    squares = [(part.double() - shift).square().sum(0) for part in torch.split(vectors, _ROWS)]
    variance = torch.stack(squares).sum(0) / len(vectors)
    refuse_no_spread(variance, origin)
    scale = variance.clamp_min(_FLOOR * float(variance.mean())).sqrt()
    for part in torch.split(vectors, _ROWS):
        part.copy_((part.double() - shift) / scale)
    return vectors, Standard(origin + shift, scale)


def standardize_by(standard: Standard, aux: TokenSource, normalize: Normalize) -> Tensor:
    """The vectors `[N, D]` of AUX sequences, float32, as seen in the standard of the ID sequences."""
    return _collected(aux, normalize, standard, "AUX")


def _collected(source: TokenSource, normalize: Normalize, standard: Standard, role: str) -> Tensor:
    vectors = torch.empty(len(source), source.dim)
    first = 0
    with progress_bar(len(source), "pool", "seq") as progress:
        for batch in source.batches(token_budget(source.dim)):
            own = vectors[first : first + len(batch)]
            own.copy_(standard.apply(pool_means(batch, normalize).cpu()))
            if bool((overflown := ~own.isfinite().all(1)).any()):
                raise InputError(
                    f"Sequence {first + int(overflown.nonzero()[0])} of the {role} data lies so far from the ID "
                    "sequences that float32 cannot hold how far; remove it."
                )
            first += len(batch)
            progress.update(len(batch))
    return vectors
