"""The cheap algebra around the one heavy operation: preprocessing of tokens, similarities, and how pools combine."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from apood.tokens.batch import TokenBatch, upload

__all__ = [
    "Pooled",
    "Preprocessing",
    "compute_prototype",
    "compute_shares",
    "mean_pool",
    "merge",
    "merge_sequences",
    "narrow_tokens",
    "round_queries",
    "scale_to_dtype",
    "similarities_and_logits",
]


class Pooled(NamedTuple):
    """The result of attention pooling, with a row per sequence and a column per head.

    With l the logits of all (token, query) pairs of a sequence and a their similarities,
    `log_mass` is L = log Σ exp(l) and `value` is h = Σ softmax(l) a. We keep L rather than the
    paper's lse = L / β, because it stays finite at β = 0, where h is the plain mean.
    An empty sequence has value 0 and log mass -inf: the neutral element of `merge`.
    """

    value: Tensor
    log_mass: Tensor


def merge(first: Pooled, second: Pooled) -> Pooled:
    """Return the pool of the union of two disjoint sets of tokens, exactly."""
    log_mass = torch.logaddexp(first.log_mass, second.log_mass)
    # not exp(first - log_mass), which feels the rounding of a large log mass; -inf - -inf is NaN: empty sets stay empty
    share = torch.sigmoid(first.log_mass - second.log_mass).nan_to_num(nan=0.0)
    return Pooled(share * first.value + (1 - share) * second.value, log_mass)


def compute_shares(log_mass: Tensor) -> Tensor:
    """Return the weight of each sequence in the prototype of each head: softmax_n(L_nj)."""
    # along rows in memory, because a softmax along columns is slow on a GPU
    return torch.softmax(log_mass.movedim(0, -1), -1).movedim(-1, 0)


def merge_sequences(pooled: Pooled) -> Pooled:
    """Return the pool of all sequences together, one number per head: Algorithm 2 of the paper in one step."""
    weights = compute_shares(pooled.log_mass).nan_to_num(nan=0.0)
    return Pooled((weights * pooled.value).sum(0), torch.logsumexp(pooled.log_mass, 0))


def compute_prototype(pooled: Pooled) -> Tensor:
    """Return μ_j = Σ_n softmax_n(L_nj) h_nj: attention pooling over the concatenation of all sequences."""
    return merge_sequences(pooled).value


def similarities_and_logits(tokens: Tensor, queries: Tensor, beta: float, similarity: str) -> tuple[Tensor, Tensor]:
    """Return similarities a and logits l of `tokens [S, D]` and `queries [M, T, D]`, both `[M, T, S]`."""
    similarities = torch.einsum("sd,mtd->mts", tokens, queries)
    if similarity == "dot":
        return similarities, beta * similarities
    # -|z - w|²/2 = z·w - |z|²/2 - |w|²/2
    halves = tokens.square().sum(-1) / 2 + queries.square().sum(-1, keepdim=True) / 2
    return similarities, beta * (similarities - halves)


_CPU_NUMBERS, _GPU_NUMBERS = 2**19, 2**26  # widened to float64 at a time: what caches hold, what a GPU can spare


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """A map of tokens: z -> z / |z| (if `unit`), then z -> z - `origin` (if given).

    It is cheap enough to be applied block by block. A linear map (whitening) is not part of it, because that folds into
    the queries for free: (P z)ᵀ w = zᵀ (Pᵀ w).

    Attributes:
        unit: whether tokens are brought to unit length.
        origin: `[D]`, subtracted from each token, or None.
    """

    unit: bool = False
    origin: Tensor | None = None

    def apply(self, tokens: Tensor) -> Tensor:
        """Return the preprocessed tokens `[..., D]`; a zero token stays zero before the origin is subtracted.

        If the squares of a token overflow, its direction is lost, and the token becomes NaN.
        """
        if self.unit:
            norm = torch.linalg.vector_norm(tokens, dim=-1, keepdim=True)
            # The squares of a smaller norm vanish, so such a token shrinks towards zero instead of blowing up.
            norm.clamp_(min=torch.finfo(tokens.dtype).tiny ** 0.5)
            tokens = tokens / norm.masked_fill_(norm == torch.inf, torch.nan)  # otherwise it would become zero
        return tokens if self.origin is None else tokens - self.origin.to(tokens)


def mean_pool(tokens: TokenBatch, preprocessing: Preprocessing | None = None) -> Tensor:
    """Return the mean token of each sequence, `[sequences, D]` in float64; zero for an empty sequence.

    Tokens are added one after the other, so that on a CPU the rounding of a mean does not depend on its neighbours.
    There is no synchronisation with a GPU.
    """
    values, offsets = tokens.values, upload(tokens.offsets, tokens.values.device)
    sums = torch.zeros(len(tokens), tokens.dim, dtype=torch.float64, device=values.device)
    owners = None if values.is_cuda else torch.arange(len(tokens)).repeat_interleave(tokens.lengths)
    step = max(1, (_GPU_NUMBERS if values.is_cuda else _CPU_NUMBERS) // max(1, tokens.dim))
    for start in range(0, len(values), step):
        z = values[start : start + step]
        z = z if z.dtype == torch.float64 else z.float()
        z = (preprocessing.apply(z) if preprocessing else z).double()
        if owners is None:  # on a GPU index_add_ adds in an arbitrary order
            bounds = (offsets - start).clamp(0, len(z))
            sums += torch.segment_reduce(z, "sum", offsets=bounds, axis=0)
        else:
            sums.index_add_(0, owners[start : start + step], z)
    return sums / offsets.diff().clamp_min(1)[:, None]


def scale_to_dtype(queries: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return `queries` in `dtype`, and the power of two that they were divided by, if any.

    float16 has a narrow range, so queries in float16 are divided by their size.
    """
    if dtype != torch.float16:
        return queries.to(dtype), None
    size = torch.exp2(torch.ceil(torch.log2(queries.abs().amax().float().clamp_min(1e-30))))
    return (queries / size).to(dtype), size


def round_queries(queries: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the nearest queries, in their own dtype, that `dtype` holds exactly after `scale_to_dtype`."""
    weights, size = scale_to_dtype(queries, dtype)
    weights = weights.to(queries.dtype)
    return weights if size is None else weights * size


def narrow_tokens(tokens: Tensor) -> Tensor:
    """Return bfloat16 tokens `[N, D]` in float16, each multiplied by a power of two. Their directions are the same.

    float16 has more digits and a narrower range. So the largest value of a token is brought to about 2^15, and values
    of up to 29 powers of two below it keep all their digits.
    """
    _, exponents = torch.frexp(torch.linalg.vector_norm(tokens, ord=torch.inf, dim=1, dtype=torch.float32))
    factors = torch.exp2((15 - exponents).clamp(-127, 127).float()).to(tokens.dtype)
    return (tokens * factors[:, None]).to(torch.float16)
