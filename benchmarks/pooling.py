"""Attention pooling, compared with the paper's pseudocode and with the bare matrix product, its limit."""

from collections.abc import Callable

import torch

from apood.pooling import FrozenPool, Pooled, Preprocessing, attention_pool, round_queries
from apood.tokens.batch import TokenBatch, dtype_name
from benchmarks.inputs import (
    BARE,
    PAPER,
    Setting,
    Shape,
    bare_product,
    draw_lengths,
    make_queries,
    make_tokens,
    paper_pool,
)
from benchmarks.record import Row
from benchmarks.timing import Call, Timing, alternate, measure

__all__ = ["EXACT", "FROZEN", "LOG_NORMAL", "POOL", "measure_rows"]

POOL = "attention_pool"
EXACT = "attention_pool, exact"
FROZEN = "FrozenPool"
LOG_NORMAL = "attention_pool, log-normal lengths 16 to 2048"
_SHORT = "attention_pool, sequences of 16 tokens"
_FRAMED = "attention_pool, unit length and centred"
_EUCLIDEAN = "attention_pool, euclidean"
_UNIFORM = "uniform lengths, as many tokens"
_SETS = 4  # sets of inputs: together larger than any cache

Pool = Callable[[TokenBatch], Pooled]


@torch.no_grad()
def measure_rows(setting: Setting) -> list[Row]:
    """Return the forward pass, for a batch to score and, on a GPU, one to train on."""
    shapes = dict.fromkeys([setting.small, setting.large])
    return [row for shape in shapes for row in _measure_kind(setting, shape)]


def _measure_kind(setting: Setting, shape: Shape) -> list[Row]:
    contenders: dict[tuple[str, str], Call] = {}
    for dtype in (torch.bfloat16, torch.float32):
        contenders |= {(name, dtype_name(dtype)): call for name, call in _contenders(setting, shape, dtype).items()}
    found = measure(setting.device, {"|".join(key): call for key, call in contenders.items()}, seconds=setting.seconds)
    times = {key: found["|".join(key)] for key in contenders}
    return [_row(setting, shape, times, *key) for key in contenders if key[0] not in (BARE, PAPER)]


def _contenders(setting: Setting, shape: Shape, dtype: torch.dtype) -> dict[str, Call]:
    device = setting.device
    queries = round_queries(make_queries(shape, device), dtype)  # as a detector keeps them after a fit on such tokens
    # A small batch fits into the cache of a GPU, so there are several.
    sets = [make_tokens(shape, dtype, device, seed=seed) for seed in range(_SETS if shape == setting.small else 1)]
    preprocessing = Preprocessing(
        unit=True, origin=torch.randn(shape.d, generator=torch.Generator().manual_seed(2)).to(device)
    )
    frozen = FrozenPool(queries, 1.0)

    def of(pool: Pool, lengths: list[int] | None = None) -> Call:
        batches = sets if lengths is None else [TokenBatch.from_lengths(batch.values, lengths) for batch in sets]
        return alternate([lambda batch=batch: pool(batch) for batch in batches])  # type: ignore[misc]

    def plain(batch: TokenBatch) -> Pooled:
        return attention_pool(batch, queries, 1.0)

    padded = [batch.values.view(shape.n, shape.s, shape.d) for batch in sets]
    found: dict[str, Call] = {
        BARE: alternate([bare_product(batch.values, queries) for batch in sets]),
        PAPER: alternate([lambda values=values: paper_pool(values, queries) for values in padded]),  # type: ignore[misc]
        POOL: of(plain),
        FROZEN: of(frozen),
        _FRAMED: of(lambda batch: attention_pool(batch, queries, 1.0, "dot", preprocessing)),
        _EUCLIDEAN: of(lambda batch: attention_pool(batch, queries, 1.0, "euclidean")),
        LOG_NORMAL: of(plain, draw_lengths(shape.tokens)),
        _SHORT: of(plain, [16] * (shape.tokens // 16)),
    }
    if dtype == torch.float32:
        found[EXACT] = of(lambda batch: attention_pool(batch, queries, 1.0, exact=True))
    return found


def _row(setting: Setting, shape: Shape, times: dict[tuple[str, str], Timing], name: str, dtype: str) -> Row:
    own = times[name, dtype]
    ragged = name in (LOG_NORMAL, _SHORT)
    baseline = times[POOL if ragged else PAPER, dtype].median
    limit_dtype = dtype if setting.gpu else "float32"  # a CPU always multiplies in float32
    limit = times[BARE, limit_dtype].median
    return Row(
        "pool", name, str(shape), dtype, "ms", own.median, _UNIFORM if ragged else PAPER, baseline,
        f"{BARE}, {limit_dtype}", limit, own.peak_mib,
    )  # fmt: skip
