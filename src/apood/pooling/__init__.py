"""Attention pooling: one heavy operation, and the cheap algebra of its results."""

from apood.pooling.algebra import (
    Pooled,
    Preprocessing,
    compute_prototype,
    compute_shares,
    mean_pool,
    merge,
    merge_sequences,
    round_queries,
)
from apood.pooling.attention import Similarity, attention_pool, check_beta
from apood.pooling.frozen import FrozenPool

__all__ = [
    "FrozenPool",
    "Pooled",
    "Preprocessing",
    "Similarity",
    "attention_pool",
    "check_beta",
    "compute_prototype",
    "compute_shares",
    "mean_pool",
    "merge",
    "merge_sequences",
    "round_queries",
]
