"""Pools and how they combine: the cheap algebra on top of the one heavy operation."""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Pooled", "merge", "pool_of_pools", "prototype", "shares"]


class Pooled(NamedTuple):
    """Result of attention pooling, a row for each sequence and a column for each head.

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


def shares(log_mass: Tensor) -> Tensor:
    """What every sequence weighs in the prototype of each head: softmax_n(L_nj)."""
    # along rows in memory, because down the columns a softmax is slow on a GPU
    return torch.softmax(log_mass.movedim(0, -1), -1).movedim(-1, 0)


def pool_of_pools(pooled: Pooled) -> Pooled:
    """The pool of all sequences together, a row each head: Algorithm 2 of the paper in one step."""
    weights = shares(pooled.log_mass).nan_to_num(nan=0.0)
    return Pooled((weights * pooled.value).sum(0), torch.logsumexp(pooled.log_mass, 0))


def prototype(pooled: Pooled) -> Tensor:
    """μ_j = Σ_n softmax_n(L_nj) h_nj: attention pooling over the concatenation of all sequences."""
    return pool_of_pools(pooled).value
