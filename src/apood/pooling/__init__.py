"""The algebra of attention pools: one heavy operation, and what is cheap on top of it."""

from apood.pooling.algebra import Pooled, merge, pool_of_pools, prototype
from apood.pooling.attention import Similarity, attention_pool, check_beta
from apood.pooling.frame import Frame
from apood.pooling.mean import mean_pool

__all__ = [
    "Frame",
    "Pooled",
    "Similarity",
    "attention_pool",
    "check_beta",
    "mean_pool",
    "merge",
    "pool_of_pools",
    "prototype",
]
