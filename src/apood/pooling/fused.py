"""Attention pooling by fused kernels: operators that torch can trace, and the functions that call them.

`apood::attention_pool` and its gradient see tensors alone, among them the offsets of the batch, which stay on the CPU:
the work lists of a launch are made from them inside the operators, so that a traced step fits any batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from apood.pooling.algebra import Pooled
from apood.pooling.kernels.backward import pool_gradient
from apood.pooling.kernels.forward import pool_forward, token_stats
from apood.pooling.kernels.launch import Columns, Stats, plan_batch, tune
from apood.pooling.preprocessing import Preprocessing, scale_to_dtype
from apood.tokens.batch import TokenBatch

__all__ = ["attention_pool_fused", "columns_of", "pool_packed"]


def _operator(name: str, function: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """Registers an operator for all devices, with the schema of its annotations.

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


def _stats(values: Tensor, unit: bool, origin: Tensor | None, euclidean: bool) -> tuple[Tensor, Tensor]:
    stats = token_stats(values, unit, origin, euclidean)
    # an operator returns tensors, and never the same one twice
    scales, halves = (
        values.new_empty(0, dtype=torch.float32) if x is None else x for x in (stats.scales, stats.halves)
    )
    return scales, halves


def _stats_fake(values: Tensor, unit: bool, origin: Tensor | None, euclidean: bool) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    tokens = values.shape[0]
    scales = values.new_empty(tokens if unit else 0, dtype=torch.float32)
    return scales, values.new_empty(tokens if euclidean else 0, dtype=torch.float32)


def _forward(
    values: Tensor,
    offsets: Tensor,
    queries: Tensor,
    beta: Tensor,
    origin: Tensor | None,  # noqa: ARG001 (for the backward pass)
    weights: Tensor,
    shift: Tensor | None,
    half: Tensor | None,
    size: Tensor | None,
    scales: Tensor | None,
    halves: Tensor | None,
) -> tuple[Tensor, Tensor]:
    return _pool(values, offsets, Columns(weights, len(queries), shift, half, size), Stats(scales, halves), beta)


def _forward_fake(values: Tensor, offsets: Tensor, queries: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    shape = (offsets.shape[0] - 1, queries.shape[0])
    return values.new_empty(shape, dtype=torch.float32), values.new_empty(shape, dtype=torch.float32)


def _gradient(
    values: Tensor,
    offsets: Tensor,
    queries: Tensor,
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
        plan_batch(offsets, values, len(weights), tuning),
        tuning,
        (value, log_mass),
        (grad_value, grad_log_mass),
    )
    return gradient.view(queries.shape).to(queries.dtype)


def _gradient_fake(values: Tensor, offsets: Tensor, queries: Tensor, *_: Any) -> Tensor:  # noqa: ARG001
    return torch.empty_like(queries, memory_format=torch.contiguous_format)


def _remember(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward(ctx: Any, grad_value: Tensor, grad_log_mass: Tensor) -> tuple[Tensor | None, ...]:
    gradient = _POOL_GRADIENT(*ctx.saved_tensors, grad_value, grad_log_mass)
    return None, None, gradient, *[None] * 8


_TOKEN_STATS = _operator("token_stats", _stats, _stats_fake)
_POOL = _operator("attention_pool", _forward, _forward_fake)
_POOL_GRADIENT = _operator("attention_pool_gradient", _gradient, _gradient_fake)
torch.library.register_autograd("apood::attention_pool", _backward, setup_context=_remember)


def _pool(values: Tensor, offsets: Tensor, columns: Columns, stats: Stats, beta: Tensor) -> tuple[Tensor, Tensor]:
    tuning = tune(values, len(columns.weights), len(offsets) - 1)
    plan = plan_batch(offsets, values, len(columns.weights), tuning)
    return pool_forward(values, columns, stats, beta, plan, tuning)


class _Untraced(torch.autograd.Function):
    """The operator and its gradient, for nobody to trace; its plan is made once for both."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, values: Tensor, offsets: Tensor, columns: Columns, stats: Stats,
        origin: Tensor | None, beta: Tensor,
    ) -> Any:  # fmt: skip
        tuning = tune(values, len(columns.weights), len(offsets) - 1)
        plan = plan_batch(offsets, values, len(columns.weights), tuning)
        ctx.save_for_backward(*(pooled := pool_forward(values, columns, stats, beta, plan, tuning)))
        ctx.shape, ctx.dtype = queries.shape, queries.dtype
        ctx.rest = (values, columns, stats, origin, beta, plan, tuning)
        return pooled

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        values, columns, stats, origin, beta, plan, tuning = ctx.rest
        gradient = pool_gradient(values, columns, stats, origin, beta, plan, tuning, ctx.saved_tensors, grads)
        return gradient.view(ctx.shape).to(ctx.dtype), *[None] * 6


def columns_of(queries: Tensor, dtype: torch.dtype, origin: Tensor | None, euclidean: bool) -> Columns:
    """`queries [M, T, D]` rounded to `dtype`, with the constants of each column from the rounded values."""
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
    """(h, L) `[sequences, M]` in float32, with gradients for `queries [M, T, D]`: what a compiler can trace.

    Args:
        values: tokens `[total, D]` on the device of the queries; 16-bit ones have the queries rounded to their dtype.
        offsets: of the sequences, on the CPU.
        queries: `[M, T, D]`, any float dtype.
        beta: inverse temperature.
        similarity: "dot" or "euclidean".
        preprocessing: of the tokens.
    """
    euclidean = similarity == "euclidean"
    origin = None if preprocessing.origin is None else preprocessing.origin.to(queries.device, torch.float32)
    columns = columns_of(queries, values.dtype, origin, euclidean)
    inverse_temperature = torch.full((), beta, dtype=torch.float32, device=values.device)
    if torch.compiler.is_compiling():
        needed = preprocessing.unit or euclidean
        scales, halves = _TOKEN_STATS(values, preprocessing.unit, origin, euclidean) if needed else (None, None)
        value, log_mass = _POOL(
            values, offsets, queries, inverse_temperature, origin, columns.weights, columns.shift, columns.half,
            columns.size, scales if preprocessing.unit else None, halves if euclidean else None,
        )  # fmt: skip
        return value, log_mass
    # the detour through operators costs as much as a small batch
    stats = token_stats(values, preprocessing.unit, origin, euclidean)
    if queries.requires_grad and torch.is_grad_enabled():
        value, log_mass = _Untraced.apply(queries, values, offsets, columns, stats, origin, inverse_temperature)  # type: ignore[no-untyped-call]
        return value, log_mass
    return _pool(values, offsets, columns, stats, inverse_temperature)


def attention_pool_fused(
    tokens: TokenBatch, queries: Tensor, beta: float, similarity: str, preprocessing: Preprocessing, exact: bool
) -> Pooled:
    """`attention_pool` for tokens other than float64, on the device of `queries`."""
    values = tokens.values.to(queries.device, non_blocking=True).contiguous()
    if exact:  # the queries then keep their digits
        values = values.float()
    return Pooled(*pool_packed(values, tokens.offsets, queries, beta, similarity, preprocessing))
