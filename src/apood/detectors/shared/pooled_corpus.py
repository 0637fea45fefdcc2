"""All mean-pooled vectors of a corpus, standardised and in memory, for the methods that need them at once."""

from typing import NamedTuple

import torch
from torch import Tensor

from apood.detectors.shared.mean_pooling import Normalize, pooled_vectors, refuse_no_spread
from apood.support.errors import InputError
from apood.support.progress import bar
from apood.tokens.source import TokenSource, token_budget

__all__ = ["Standard", "standardized", "standardized_by"]

_ROWS = 4096  # vectors converted to float64 at once
_FLOOR = 1e-6  # variance of a dimension, relative to the mean one; below it lies rounding, which must decide nothing


class Standard(NamedTuple):
    """Mean and spread `[D]` of each dimension over a corpus, float64."""

    mean: Tensor
    scale: Tensor

    def apply(self, vectors: Tensor) -> Tensor:
        """(x - mean) / scale, float64."""
        return (vectors.double() - self.mean) / self.scale


def standardized(source: TokenSource, normalize: Normalize) -> tuple[Tensor, Standard]:
    """The vectors `[N, D]`, float32, each dimension with mean 0 and variance 1, and what brought them there.

    Read in one pass. Until the mean is known the vectors are kept around the first of them, because far from
    the origin float32 would not tell them apart; neither depends on where the batches are cut.
    """
    origin = pooled_vectors(source.select([0]), normalize).cpu()[0]
    vectors = _collected(source, normalize, Standard(origin, torch.ones_like(origin)), "ID")
    shift = torch.stack([part.double().sum(0) for part in torch.split(vectors, _ROWS)]).sum(0) / len(vectors)
    squares = [(part.double() - shift).square().sum(0) for part in torch.split(vectors, _ROWS)]
    variance = torch.stack(squares).sum(0) / len(vectors)
    refuse_no_spread(variance, origin)
    scale = variance.clamp_min(_FLOOR * float(variance.mean())).sqrt()
    for part in torch.split(vectors, _ROWS):
        part.copy_((part.double() - shift) / scale)
    return vectors, Standard(origin + shift, scale)


def standardized_by(standard: Standard, aux: TokenSource, normalize: Normalize) -> Tensor:
    """The vectors `[N, D]` of AUX sequences, float32, as seen in the standard of the ID sequences."""
    return _collected(aux, normalize, standard, "AUX")


def _collected(source: TokenSource, normalize: Normalize, standard: Standard, role: str) -> Tensor:
    vectors = torch.empty(len(source), source.dim)
    first = 0
    with bar(len(source), "pool", "seq") as progress:
        for batch in source.batches(token_budget(source.dim)):
            own = vectors[first : first + len(batch)]
            own.copy_(standard.apply(pooled_vectors(batch, normalize).cpu()))
            if bool((overflown := ~own.isfinite().all(1)).any()):
                raise InputError(
                    f"Sequence {first + int(overflown.nonzero()[0])} of the {role} data lies so far from the ID "
                    "sequences that float32 cannot hold how far; remove it."
                )
            first += len(batch)
            progress.update(len(batch))
    return vectors
