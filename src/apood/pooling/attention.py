"""The entry point of attention pooling: it checks the arguments and chooses the implementation."""

import os
from functools import cache
from importlib.util import find_spec
from shutil import which
from typing import Literal, get_args

import torch
from torch import Tensor

from apood.pooling.algebra import Pooled, Preprocessing
from apood.pooling.blocked import attention_pool_blocked
from apood.support.checks import check_choice, check_number
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch

__all__ = ["Similarity", "attention_pool", "check_beta", "check_dimensions", "check_pool", "has_kernels", "has_triton"]

Similarity = Literal["dot", "euclidean"]


def check_beta(beta: float) -> None:
    """Raise InputError if the inverse temperature is negative or not finite."""
    check_number("beta", beta, least=0)


def check_pool(queries: Tensor, beta: float, similarity: str) -> None:
    """Raise InputError if no tokens could be pooled with these queries and settings."""
    check_beta(beta)
    check_choice("similarity", similarity, get_args(Similarity))
    if queries.ndim != 3 or 0 in queries.shape:
        raise InputError(f"queries must have shape [heads, queries, D], each at least 1, got {tuple(queries.shape)}.")


def check_dimensions(tokens: TokenBatch, queries: Tensor) -> None:
    """Raise InputError if `tokens` is not a TokenBatch, or if its dimension is not that of the queries."""
    if not isinstance(tokens, TokenBatch):
        raise InputError(
            "Tokens must be a TokenBatch, made for example by TokenBatch.from_lengths(values, lengths) or "
            f"TokenBatch.from_sequences(arrays), got {type(tokens).__name__}."
        )
    if queries.shape[2] != tokens.dim:
        raise InputError(f"The tokens have D={tokens.dim}, the queries have D={queries.shape[2]}.")


def attention_pool(
    tokens: TokenBatch,
    queries: Tensor,
    beta: float,
    similarity: Similarity = "dot",
    preprocessing: Preprocessing | None = None,
    *,
    exact: bool = False,
) -> Pooled:
    """Pool every sequence of `tokens` for every head of `queries [M, T, D]`.

    For a sequence Z and a head W the softmax runs over all S x T pairs of a token and a query:
    a = Zᵀ W, l = β a (dot) or β (a - |z|²/2 - |w|²/2) (euclidean), L = log Σ exp(l),
    h = Σ softmax(l) a = Tr(Wᵀ Z softmax(l)).

    Gradients flow to `queries`, not to the tokens. The computation is in float64 for float64 tokens and in float32
    otherwise, on the device of `queries`; on a CUDA device with Triton it uses fused kernels.

    Args:
        tokens: the sequences.
        queries: `[M heads, T queries, D]`.
        beta: inverse temperature; 0 is mean pooling.
        similarity: of the attention; the pooled value is the dot product in both cases.
        preprocessing: unit length and origin of the tokens; None takes them as they are.
        exact: keep all digits of the queries. Otherwise the fused kernels round them to the dtype of 16-bit tokens.
            Without kernels (on a CPU) and for float32 tokens nothing is rounded, and this makes no difference.

    Returns:
        Pooled values and log masses, both `[sequences, M]`.

    Examples:
        Two sequences of two tokens and of one, and two heads with one query each. β = 0 takes the mean of the
        similarities, a large β nearly the largest.

        >>> import torch
        >>> from apood import TokenBatch, attention_pool
        >>> tokens = TokenBatch.from_lengths(torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]]), [2, 1])
        >>> queries = torch.eye(2)[:, None]
        >>> attention_pool(tokens, queries, beta=0.0).value
        tensor([[2., 0.],
                [0., 2.]])
        >>> attention_pool(tokens, queries, beta=100.0).value
        tensor([[3., 0.],
                [0., 2.]])
    """
    check_pool(queries, beta, similarity)
    check_dimensions(tokens, queries)
    if tokens.dtype != torch.float64 and has_kernels(queries.device):
        from apood.pooling.fused import attention_pool_fused

        return attention_pool_fused(tokens, queries, beta, similarity, preprocessing or Preprocessing(), exact)
    return attention_pool_blocked(tokens, queries, beta, similarity, preprocessing or Preprocessing())


def has_triton() -> bool:
    """Whether Triton is installed in a version that has tensor descriptors (3.4 or later)."""
    try:
        return find_spec("triton.tools.tensor_descriptor") is not None
    except ModuleNotFoundError:
        return False


@cache
def has_kernels(device: torch.device) -> bool:
    """Whether the fused kernels run on `device`: it needs CUDA with bfloat16 products, Triton, and a C compiler."""
    if device.type != "cuda" or torch.version.cuda is None or not has_triton():
        return False
    compiler = os.environ.get("CC") or which("gcc") or which("clang")
    return compiler is not None and torch.cuda.get_device_capability(device)[0] >= 8
