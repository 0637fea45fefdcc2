"""Time and memory of the pool by the number of tokens, heads and queries."""

import torch

from apood.pooling import attention_pool, round_queries
from apood.tokens.batch import dtype_name
from benchmarks.inputs import BARE, Setting, Shape, bare_product, make_queries, make_tokens
from benchmarks.record import Row
from benchmarks.timing import measure

__all__ = ["BY_HEADS", "BY_QUERIES", "BY_TOKENS", "measure_rows"]

BY_TOKENS, BY_HEADS, BY_QUERIES = "attention_pool by tokens", "attention_pool by heads", "attention_pool by queries"


@torch.no_grad()
def measure_rows(setting: Setting) -> list[Row]:
    """Return rows that vary one size of a shape at a time; a CPU gets fewer heads and tokens."""
    if setting.quick:
        middle, counts = Shape(4, 50, 32, 8, 2), [2, 4]
    else:
        most, middle = (7, Shape(200, 500, 1024, 256, 4)) if setting.gpu else (6, Shape(20, 500, 1024, 64, 4))
        counts = [10**power // middle.s for power in range(3, most + 1)]
    walks = {
        BY_TOKENS: [middle._replace(n=count) for count in counts],
        BY_HEADS: [middle._replace(m=round(middle.m * factor)) for factor in (0.25, 0.5, 1, 2, 4)],
        BY_QUERIES: [middle._replace(t=count) for count in (1, 2, 3, 4, 8, 16)],
    }
    return [_row(setting, what, shape) for what, shapes in walks.items() for shape in shapes]


def _row(setting: Setting, what: str, shape: Shape) -> Row:
    dtype = torch.bfloat16
    tokens, queries = (
        make_tokens(shape, dtype, setting.device),
        round_queries(make_queries(shape, setting.device), dtype),
    )
    found = measure(
        setting.device,
        {BARE: bare_product(tokens.values, queries), what: lambda: attention_pool(tokens, queries, 1.0)},
        seconds=setting.seconds / 10,
    )
    own, limit = found[what], found[BARE].median
    name = dtype_name(dtype)
    return Row(
        "growth", what, str(shape), name, "ms", own.median, f"{BARE}, {name}", limit, f"{BARE}, {name}", limit,
        own.peak_mib,
    )  # fmt: skip
