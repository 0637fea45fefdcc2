"""The precision of queries that meet 16-bit tokens: one rule, for the kernels and for what a detector keeps.

Tensor cores multiply numbers of one dtype, so 16-bit tokens meet queries of theirs. A detector that keeps queries which
that dtype holds exactly scores such tokens alike on every device.
"""

import torch
from torch import Tensor

__all__ = ["in_dtype", "rounded"]


def in_dtype(queries: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """`queries` in `dtype`, and the power of two that they were divided by, if any: float16 has a narrow range."""
    if dtype != torch.float16:
        return queries.to(dtype), None
    size = torch.exp2(torch.ceil(torch.log2(queries.abs().amax().float().clamp_min(1e-30))))
    return (queries / size).to(dtype), size


def rounded(queries: Tensor, dtype: torch.dtype) -> Tensor:
    """The nearest queries, in their own dtype, that `in_dtype` only copies."""
    weights, size = in_dtype(queries, dtype)
    weights = weights.to(queries.dtype)
    return weights if size is None else weights * size
