"""Errors of the pool and of its gradient against float64 on the same rounded inputs, with |β a| up to 30.

An error is the largest one over the root mean square of the quantity. The baseline is the definition in float32 on the
same inputs.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from apood.pooling import Pooled, attention_pool
from apood.pooling.eager import attention_pool_eager
from apood.tokens.batch import dtype_name
from benchmarks.inputs import Setting, make_queries, make_tokens
from benchmarks.record import Row

__all__ = ["GRADIENT", "MASS", "RELATIVE", "SPREAD", "VALUE", "measure_rows"]

VALUE, MASS, GRADIENT = "h", "L", "gradient of the queries"
RELATIVE, SPREAD = "h, by norms", "h, by norms, β = 1"
_LARGEST = 30.0
_BASELINE = "the definition, float32"


class _Found(NamedTuple):
    value: Tensor
    mass: Tensor
    gradient: Tensor
    spread: Tensor  # h if many tokens share the attention


def measure_rows(setting: Setting) -> list[Row]:
    """Return the errors of every dtype, and of float32 in the exact mode."""
    kinds = [(torch.bfloat16, False), (torch.float16, False), (torch.float32, False), (torch.float32, True)]
    return [row for dtype, exact in kinds for row in _measure_kind(setting, dtype, exact=exact)]


def _measure_kind(setting: Setting, dtype: torch.dtype, *, exact: bool) -> list[Row]:
    shape = setting.small._replace(n=setting.small.n if setting.quick else 8)
    tokens = make_tokens(shape, dtype, setting.device)
    queries = make_queries(shape, setting.device).to(dtype).float()
    beta = _LARGEST / float((tokens.values.float() @ queries.flatten(0, 1).T).abs().max())
    generator = torch.Generator(setting.device).manual_seed(5)
    weights = [torch.randn(shape.n, shape.m, generator=generator, device=setting.device) for _ in range(2)]

    def pool(way: str, leaf: Tensor, beta: float) -> Pooled:
        if way == "ours":
            return attention_pool(tokens, leaf, beta, exact=exact)
        return attention_pool_eager(tokens, leaf, beta)  # in the dtype of the queries

    def found(way: str) -> _Found:
        leaf = queries.clone().to(torch.float64 if way == "truth" else torch.float32).requires_grad_()
        pooled = pool(way, leaf, beta)
        (pooled.value * weights[0] + pooled.log_mass * weights[1]).sum().backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        with torch.no_grad():  # without gradients, a CPU may be less precise
            return _Found(*pool(way, leaf, beta), leaf.grad, pool(way, leaf, 1.0).value)

    truth, plain, ours = (found(way) for way in ("truth", "plain", "ours"))
    name = dtype_name(dtype) + (", exact" if exact else "")

    def row(what: str, own: float, other: float) -> Row:
        return Row("errors", what, str(shape), name, "error", own, _BASELINE, other)

    return [
        *(
            row(what, _error(own, true), _error(other, true))
            for what, own, other, true in zip((VALUE, MASS, GRADIENT), ours, plain, truth, strict=False)
        ),
        row(RELATIVE, _relative(ours.value, truth.value), _relative(plain.value, truth.value)),
        row(SPREAD, _relative(ours.spread, truth.spread), _relative(plain.spread, truth.spread)),
    ]


def _error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).abs().max() / truth.square().mean().sqrt())


def _relative(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())
