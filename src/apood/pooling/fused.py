"""Attention pooling by fused kernels: its gradient, and operators that let a compiler of torch trace both.

`apood::attention_pool` and its gradient see tensors alone, among them the offsets of the batch, which stay on the CPU:
the work lists of a launch are made from them inside the operators, so that a traced step fits any batch.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from apood.pooling.algebra import Pooled, Preprocessing, scale_to_dtype
from apood.pooling.kernels.backward import pool_gradient
from apood.pooling.kernels.forward import compute_token_stats, pool_forward
from apood.pooling.kernels.launch import Columns, Stats, make_plan, tune
from apood.tokens.batch import TokenBatch

__all__ = ["PreparedQueries", "attention_pool_fused", "pool_packed", "prepare_queries"]


class PreparedQueries(NamedTuple):
    """What the kernels need of the queries and the preprocessing, on their device.

    Attributes:
        columns: the queries in the dtype of the tokens, with the constants of each column.
        beta: inverse temperature, a scalar tensor.
        unit: whether tokens are brought to unit length.
        origin: of the tokens `[D]`, float32, or None.
        euclidean: whether the logits are euclidean.
    """

    columns: Columns
    beta: Tensor
    unit: bool
    origin: Tensor | None
    euclidean: bool


def prepare_queries(
    queries: Tensor, beta: float, similarity: str, preprocessing: Preprocessing, dtype: torch.dtype
) -> PreparedQueries:
    """Return `queries [M, T, D]` as the kernels want them beside tokens in `dtype`."""
    origin = None if preprocessing.origin is None else preprocessing.origin.to(queries.device, torch.float32)
    euclidean = similarity == "euclidean"
    columns = _make_columns(queries, dtype, origin, euclidean)
    scalar = torch.full((), beta, dtype=torch.float32, device=queries.device)
    return PreparedQueries(columns, scalar, preprocessing.unit, origin, euclidean)


def _make_columns(queries: Tensor, dtype: torch.dtype, origin: Tensor | None, euclidean: bool) -> Columns:
    """Return the queries rounded to `dtype`, with the constants of each column from the rounded values."""
    weights, size = scale_to_dtype(queries.detach().reshape(-1, queries.shape[2]), dtype)
    weights = weights.contiguous()
    if origin is None and not euclidean:
        return Columns(weights, len(queries), None, None, size)
    seen = weights.float() if size is None else weights.float() * size
    # not a matrix product: those may round to tf32
    shift = None if origin is None else (seen * origin).sum(1)
    half = seen.square().sum(1) / 2 if euclidean else None
    return Columns(weights, len(queries), shift, half, size)


def pool_packed(
    values: Tensor, offsets: Tensor, queries: Tensor, beta: float, similarity: str, preprocessing: Preprocessing
) -> tuple[Tensor, Tensor]:
    """Return (h, L) `[sequences, M]` in float32, with gradients for the queries. A compiler can trace this.

    Args:
        values: tokens `[total, D]` on the device of the queries; the queries are rounded to a 16-bit dtype of theirs.
        offsets: of the sequences, on the CPU.
        queries: `[M, T, D]`, any float dtype.
        beta: inverse temperature.
        similarity: "dot" or "euclidean".
        preprocessing: of the tokens.
    """
    prepared = prepare_queries(queries, beta, similarity, preprocessing, values.dtype)
    columns, scalar, unit, origin, euclidean = prepared
    if torch.compiler.is_compiling():
        scales, halves = _TOKEN_STATS(values, unit, origin, euclidean) if unit or euclidean else (None, None)
        stats = Stats(scales if unit else None, halves if euclidean else None)
    else:
        stats = compute_token_stats(values, unit, origin, euclidean)
    value, log_mass = _AttentionPool.apply(  # type: ignore[no-untyped-call]
        queries, values, offsets, scalar, origin, columns.weights, columns.shift, columns.half, columns.size,
        stats.scales, stats.halves,
    )  # fmt: skip
    return value, log_mass


def attention_pool_fused(
    tokens: TokenBatch, queries: Tensor, beta: float, similarity: str, preprocessing: Preprocessing, exact: bool
) -> Pooled:
    """Return `attention_pool` of tokens other than float64, on the device of `queries`."""
    values = tokens.values.to(queries.device, non_blocking=True).contiguous()
    if exact:  # the queries then keep their digits
        values = values.float()
    return Pooled(*pool_packed(values, tokens.offsets, queries, beta, similarity, preprocessing))


class _AttentionPool(torch.autograd.Function):
    """(h, L) with gradients for the queries alone; the encoder is frozen.

    A compiler sees the operators. Without one they are left out, because the detour costs as much as a small batch.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        pooled = (_POOL if torch.compiler.is_compiling() else _pool)(*inputs)
        ctx.save_for_backward(*inputs, *pooled)
        return pooled

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        gradient = (_POOL_GRADIENT if torch.compiler.is_compiling() else _gradient)(*ctx.saved_tensors, *grads)
        return gradient, *[None] * 10


def _pool(
    queries: Tensor,
    values: Tensor,
    offsets: Tensor,
    beta: Tensor,
    origin: Tensor | None,  # noqa: ARG001 (for the gradient)
    weights: Tensor,
    shift: Tensor | None,
    half: Tensor | None,
    size: Tensor | None,
    scales: Tensor | None,
    halves: Tensor | None,
) -> tuple[Tensor, Tensor]:
    tuning = tune(values, len(weights), len(offsets) - 1)
    columns, plan = Columns(weights, len(queries), shift, half, size), make_plan(offsets, values, len(weights), tuning)
    return pool_forward(values, columns, Stats(scales, halves), beta, plan, tuning)


def _gradient(
    queries: Tensor,
    values: Tensor,
    offsets: Tensor,
    beta: Tensor,
    origin: Tensor | None,
    weights: Tensor,
    shift: Tensor | None,
    half: Tensor | None,
    size: Tensor | None,
    scales: Tensor | None,
    halves: Tensor | None,
    value: Tensor,
    log_mass: Tensor,
    grad_value: Tensor,
    grad_log_mass: Tensor,
) -> Tensor:
    tuning = tune(values, len(weights), len(offsets) - 1)
    gradient = pool_gradient(
        values,
        Columns(weights, len(queries), shift, half, size),
        Stats(scales, halves),
        origin,
        beta,
        make_plan(offsets, values, len(weights), tuning),  # that of the forward pass, which is remembered
        tuning,
        (value, log_mass),
        (grad_value, grad_log_mass),
    )
    return gradient.view(queries.shape).to(queries.dtype)


def _token_stats(values: Tensor, unit: bool, origin: Tensor | None, euclidean: bool) -> tuple[Tensor, Tensor]:
    stats = compute_token_stats(values, unit, origin, euclidean)
    # an operator returns tensors, and never the same one twice
    scales, halves = (
        values.new_empty(0, dtype=torch.float32) if x is None else x for x in (stats.scales, stats.halves)
    )
    return scales, halves


def _fake_token_stats(values: Tensor, unit: bool, origin: Tensor | None, euclidean: bool) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    tokens = values.shape[0]
    scales = values.new_empty(tokens if unit else 0, dtype=torch.float32)
    return scales, values.new_empty(tokens if euclidean else 0, dtype=torch.float32)


def _fake_pool(queries: Tensor, values: Tensor, offsets: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    shape = (offsets.shape[0] - 1, queries.shape[0])
    return values.new_empty(shape, dtype=torch.float32), values.new_empty(shape, dtype=torch.float32)


def _fake_gradient(queries: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(queries, memory_format=torch.contiguous_format)


def _register_operator(name: str, function: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """Register an operator for all devices, with the schema of its annotations, and return it.

    `torch.library.custom_op` would do the same, but its first call loads a compiler, which takes seconds, and each
    call takes twice as long.
    """
    qualified = f"apood::{name}"
    schema = torch.library.infer_schema(function, mutates_args=())
    torch.library.define(qualified, schema, tags=torch.Tag.pt2_compliant_tag)
    torch.library.impl(qualified, "default", function)
    torch.library.register_fake(qualified, fake)
    operator: Callable[..., Any] = getattr(torch.ops.apood, name).default
    return operator


_TOKEN_STATS = _register_operator("token_stats", _token_stats, _fake_token_stats)
_POOL = _register_operator("attention_pool", _pool, _fake_pool)
_POOL_GRADIENT = _register_operator("attention_pool_gradient", _gradient, _fake_gradient)
