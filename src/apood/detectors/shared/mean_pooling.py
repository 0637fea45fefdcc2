"""Mean pooling: one vector per sequence, its mean and covariance over a corpus, and all vectors of a corpus."""

import warnings
from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from apood.detectors.shared.explanation import Explanation
from apood.pooling import Preprocessing, mean_pool
from apood.support.errors import FitWarning, InputError
from apood.support.progress import progress_bar
from apood.tokens.batch import Ragged, TokenBatch, upload
from apood.tokens.source import TokenSource, token_budget

__all__ = [
    "EIGENVALUE_FLOOR",
    "Moments",
    "Normalize",
    "Standard",
    "compute_covariance",
    "compute_moments",
    "describe_shortage",
    "inverse_root",
    "measure_spread",
    "measure_vectors",
    "merge_spreads",
    "pool_means",
    "refuse_no_spread",
    "share_means",
    "shrink",
    "standardize",
    "standardize_by",
    "warn_of_few",
]

Normalize = Literal["tokens", "pooled", "none"]
"""What is scaled to length 1: each token before pooling, the pooled vector, or nothing."""

EIGENVALUE_FLOOR = 1e-4
"""Smallest eigenvalue of a covariance, relative to the mean one; smaller ones are raised to it."""

_ROUNDING = 1e-24  # relative variance of equal vectors by float64 rounding alone, with a margin
_ROWS = 4096  # vectors converted to float64 at once
_VARIANCE_FLOOR = 1e-6  # of a dimension, relative to the mean one; smaller variances are rounding errors


def pool_means(tokens: TokenBatch, normalize: Normalize) -> Tensor:
    """Return the mean-pooled sequences `[N, D]`, float64."""
    means = mean_pool(tokens, Preprocessing(unit=normalize == "tokens"))
    return Preprocessing(unit=normalize == "pooled").apply(means)


def share_means(tokens: TokenBatch, normalize: Normalize, directions: Tensor, totals: Tensor) -> Explanation:
    """Return what each token contributes to a distance that is linear in the pooled vector, given a direction.

    The pooled vector is a sum over tokens, z̄ = Σ_s x_s, and x_s·g, with g the direction, is what token s adds to z̄·g.
    The rest of the total, such as the part of the prototype, belongs to all tokens alike, so the sum is the total. A
    squared distance (z̄ - μ)ᵀ A (z̄ - μ) has g = A (z̄ - μ), a distance |z̄ - y| has g = (z̄ - y) / |z̄ - y|.

    Args:
        tokens: the sequences, none of them empty.
        normalize: how they are pooled.
        directions: g per sequence, `[N, D]`, float64.
        totals: the distance per sequence, `[N]`, float64.
    """
    lengths = upload(tokens.lengths, tokens.values.device)
    owners = torch.arange(len(tokens), device=lengths.device).repeat_interleave(lengths)
    z = tokens.values if tokens.dtype == torch.float64 else tokens.values.float()
    along = (Preprocessing(unit=normalize == "tokens").apply(z).double() * directions[owners]).sum(1)
    along /= lengths[owners]
    if normalize == "pooled":
        norms = torch.linalg.vector_norm(mean_pool(tokens), dim=1)[owners]
        along = torch.where(norms > 0, along / norms, 0.0)  # a mean of 0 has no direction that a token could turn
    sums = torch.zeros_like(totals).index_add_(0, owners, along)
    return Explanation(Ragged(along + ((totals - sums) / lengths)[owners], tokens.offsets), totals)


class Moments(NamedTuple):
    """Mean and covariance of the pooled vectors of a corpus.

    Attributes:
        sequences: number of sequences.
        mean: `[D]`, float64.
        covariance: `[D, D]`, float64, divided by the number of sequences.
    """

    sequences: int
    mean: Tensor
    covariance: Tensor


def compute_moments(source: TokenSource, normalize: Normalize) -> Moments:
    """Return the moments after one streaming pass, by Chan's pairwise update, which avoids cancellation."""
    total = _make_empty(source.dim)
    with progress_bar(len(source), "covariance", "seq") as progress:
        for batch in source.batches(token_budget(source.dim)):
            total = merge_spreads(total, measure_spread(batch, normalize))
            progress.update(len(batch))
    return compute_covariance(total)


def measure_spread(tokens: TokenBatch, normalize: Normalize) -> dict[str, Tensor]:
    """Return the number of sequences, the mean of their pooled vectors, and the sum of the outer products about it."""
    return measure_vectors(pool_means(tokens, normalize).cpu())


def measure_vectors(x: Tensor) -> dict[str, Tensor]:
    """Return the number of vectors `[N, D]`, float64, their mean, and the sum of the outer products about it."""
    mean = x.mean(0)
    centred = x - mean
    return {"count": torch.tensor(float(len(x)), dtype=torch.float64), "mean": mean, "scatter": centred.T @ centred}


def merge_spreads(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return count, mean and scatter of a union; a scatter may also be that of each dimension alone, `[D]`.

    This is Chan's update, in which nothing large cancels.
    """
    delta = second["mean"] - first["mean"]
    products = torch.outer(delta, delta) if second["scatter"].ndim == 2 else delta.square()
    count = first["count"] + second["count"]
    share = second["count"] / count
    return {
        "count": count,
        "mean": first["mean"] + delta * share,
        "scatter": first["scatter"] + (second["scatter"] + products * (first["count"] * share)),
    }


def compute_covariance(spread: Mapping[str, Tensor]) -> Moments:
    """Return the moments that count, mean and scatter stand for. Raise InputError if all vectors are the same."""
    covariance = spread["scatter"] / spread["count"]
    refuse_no_spread(covariance.diagonal(), spread["mean"])
    return Moments(int(spread["count"]), spread["mean"], covariance)


def _make_empty(dim: int) -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {"count": (), "mean": (dim,), "scatter": (dim, dim)}
    return {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}


def refuse_no_spread(variance: Tensor, centre: Tensor) -> None:
    """Raise `InputError` if pooled vectors near `centre [D]` do not differ, according to their `variance [D]`."""
    if float(variance.sum()) <= _ROUNDING * float(centre @ centre):
        raise InputError("All pooled sequences are the same vector: there is no spread to measure distances against.")


def describe_shortage(sequences: int, dim: int) -> str | None:
    """Return the message for a covariance of too few sequences, or None if there are enough."""
    if sequences >= dim:
        return None
    return (
        f"There are fewer ID sequences ({sequences}) than token dimensions ({dim}), too few to know the usual "
        "spread in every direction; add sequences, or use knn, which needs no covariance."
    )


def warn_of_few(source: TokenSource) -> None:
    """Issue a `FitWarning` if there are too few sequences; its stack level is right if `_fit` itself calls this."""
    if (message := describe_shortage(len(source), source.dim)) is not None:
        warnings.warn(message, FitWarning, stacklevel=4)


def shrink(covariance: Tensor, share: float) -> Tensor:
    """Return a mixture of a covariance and its mean variance in all directions, which has `share` of the weight."""
    mean = covariance.diagonal().mean()
    return (1 - share) * covariance + share * mean * torch.eye(len(covariance), dtype=covariance.dtype)


def inverse_root(covariance: Tensor, floor: float) -> Tensor:
    """Return Σ^(-1/2), the symmetric root of the inverse.

    Of all P with Pᵀ P = Σ⁻¹ only the symmetric one does not depend on the signs of the eigenvectors and on their choice
    in a null space, which change with the number of threads. A fit that resumes on another machine must find the same
    space.

    Eigenvalues below `floor` times their mean are raised to it. A covariance is singular if there are fewer sequences
    than dimensions, or if the encoder ends in a layer norm, which confines its tokens to a hyperplane. Without the
    floor such a direction would decide every score.
    """
    values, vectors = torch.linalg.eigh(covariance)
    root: Tensor = (vectors / values.clamp_min(floor * float(values.mean())).sqrt()) @ vectors.T
    return root


class Standard(NamedTuple):
    """Mean and standard deviation of each dimension over a corpus.

    Attributes:
        mean: `[D]`, float64.
        scale: `[D]`, float64.
    """

    mean: Tensor
    scale: Tensor

    def apply(self, vectors: Tensor) -> Tensor:
        """Return (x - mean) / scale, float64."""
        return (vectors.double() - self.mean) / self.scale


def standardize(source: TokenSource, normalize: Normalize) -> tuple[Tensor, Standard]:
    """Return the pooled vectors `[N, D]`, float32, each dimension with mean 0 and variance 1, and their `Standard`.

    The corpus is read once. Until the mean is known, vectors are stored relative to the first one, because float32
    cannot tell vectors far from the origin apart. The result does not depend on the size of the batches.
    """
    origin = pool_means(source.select([0]), normalize).cpu()[0]
    vectors = _collect(source, normalize, Standard(origin, torch.ones_like(origin)), "ID")
    shift = torch.stack([part.double().sum(0) for part in torch.split(vectors, _ROWS)]).sum(0) / len(vectors)
    squares = [(part.double() - shift).square().sum(0) for part in torch.split(vectors, _ROWS)]
    variance = torch.stack(squares).sum(0) / len(vectors)
    refuse_no_spread(variance, origin)
    scale = variance.clamp_min(_VARIANCE_FLOOR * float(variance.mean())).sqrt()
    for part in torch.split(vectors, _ROWS):
        part.copy_((part.double() - shift) / scale)
    return vectors, Standard(origin + shift, scale)


def standardize_by(standard: Standard, aux: TokenSource, normalize: Normalize) -> Tensor:
    """Return the pooled vectors `[N, D]` of AUX sequences, float32, in the standard of the ID sequences."""
    return _collect(aux, normalize, standard, "AUX")


def _collect(source: TokenSource, normalize: Normalize, standard: Standard, role: str) -> Tensor:
    """Return all pooled vectors of a corpus in `standard`, float32."""
    vectors = torch.empty(len(source), source.dim)
    first = 0
    with progress_bar(len(source), "pool", "seq") as progress:
        for batch in source.batches(token_budget(source.dim)):
            own = vectors[first : first + len(batch)]
            own.copy_(standard.apply(pool_means(batch, normalize).cpu()))
            if bool((overflown := ~own.isfinite().all(1)).any()):
                raise InputError(
                    f"Sequence {first + int(overflown.nonzero()[0])} of the {role} data lies so far from the ID "
                    "sequences that float32 cannot hold the distance; remove it."
                )
            first += len(batch)
            progress.update(len(batch))
    return vectors
