"""Similarities, pools, and how pools combine: the cheap algebra around the one heavy operation."""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Pooled", "compute_prototype", "compute_shares", "merge", "merge_sequences", "similarities_and_logits"]


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
    """The pool of the union of two disjoint token sets, exactly."""
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
