"""The one entrance to attention pooling: checks its arguments and picks the implementation."""

from typing import Literal, get_args

from torch import Tensor

from apood.pooling.algebra import Pooled
from apood.pooling.blocked import attention_pool_blocked
from apood.pooling.frame import Frame
from apood.support.arguments import number, one_of
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch

__all__ = ["Similarity", "attention_pool", "check_beta"]

Similarity = Literal["dot", "euclidean"]


def check_beta(beta: float) -> None:
    """Refuses an inverse temperature that is negative or not finite."""
    number("beta", beta, least=0)


def attention_pool(
    tokens: TokenBatch,
    queries: Tensor,
    beta: float,
    similarity: Similarity = "dot",
    frame: Frame | None = None,
) -> Pooled:
    """Pools every sequence of `tokens` for every head of `queries [M, T, D]`.

    For a sequence Z and a head W the softmax runs over all S x T pairs of a token and a query:
    a = Zᵀ W, l = β a (dot) or β (a - |z|²/2 - |w|²/2) (euclidean), L = log Σ exp(l),
    h = Σ softmax(l) a = Tr(Wᵀ Z softmax(l)).

    Gradients flow to `queries`, not to the tokens. Computed in float64 for float64 tokens, else in
    float32, on the device of `queries`.

    Args:
        tokens: the sequences; they are looked at in `frame`.
        queries: `[M heads, T queries, D]`.
        beta: inverse temperature, 0 (mean pooling) included.
        similarity: what the attention follows; the pooled value is the dot product in both cases.
        frame: the scale and origin of the tokens; None takes them as they are.

    Returns:
        Pooled values and log masses, both `[sequences, M]`.
    """
    check_beta(beta)
    one_of("similarity", similarity, get_args(Similarity))
    if queries.ndim != 3 or 0 in queries.shape:
        raise InputError(f"queries must have shape [heads, queries, D], each at least 1, got {tuple(queries.shape)}.")
    if queries.shape[2] != tokens.dim:
        raise InputError(f"The tokens have D={tokens.dim}, the queries have D={queries.shape[2]}.")
    return attention_pool_blocked(tokens, queries, beta, similarity, frame or Frame())
