"""Attention pooling: one heavy operation, and the cheap algebra of its results."""

from apood.pooling.algebra import Pooled, compute_prototype, compute_shares, merge, merge_sequences
from apood.pooling.attention import Similarity, attention_pool, check_beta
from apood.pooling.frozen import FrozenPool
from apood.pooling.preprocessing import Preprocessing, mean_pool, round_queries

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
