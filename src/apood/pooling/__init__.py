"""The algebra of attention pools: one heavy operation, and what is cheap on top of it."""

from apood.pooling.algebra import Pooled, merge, pool_of_pools, prototype, shares
from apood.pooling.attention import Similarity, attention_pool, check_beta
from apood.pooling.frame import Frame
from apood.pooling.frozen import FrozenPool
from apood.pooling.mean import mean_pool
from apood.pooling.rounding import rounded

__all__ = [
    "Frame",
    "FrozenPool",
    "Pooled",
    "Similarity",
    "attention_pool",
    "check_beta",
    "mean_pool",
    "merge",
    "pool_of_pools",
    "prototype",
    "rounded",
    "shares",
]
