"""A training step and a whole fit, compared with the paper's pseudocode under autograd and with three products."""

import time
import warnings

import torch
from torch import Tensor

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.ap_ood.training import compute_regularizer, log_norms, measure_spread, squared_distances
from apood.fitting.optimise import Adam
from apood.pooling import Pooled, attention_pool
from apood.support.errors import FitWarning
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
from benchmarks.timing import Call, measure, peak_memory, synchronize

__all__ = ["FIT", "LOG_NORMAL_STEP", "STEP", "STEP_OF_FIT", "measure_fits", "measure_rows"]

STEP = "training step on one batch"
LOG_NORMAL_STEP = "training step, log-normal lengths 16 to 2048"
FIT = "whole fit"
STEP_OF_FIT = "step of a fit, its batch drawn from the corpus"
_RATE = 1e-4
_AT_ONCE = 20  # consecutive steps, as in a fit: after a wait, a GPU is slow at the first one
_PRODUCTS = 3  # the forward pass, the recomputed similarities, the gradient


def measure_rows(setting: Setting) -> list[Row]:
    """Return the time of a step (forward, backward and Adam), on one repeated batch and inside a fit."""
    shape, dtype = setting.large, _dtype(setting)
    even = make_tokens(shape, dtype, setting.device)
    queries = make_queries(shape, setting.device)
    ragged = TokenBatch.from_lengths(even.values, draw_lengths(shape.tokens))
    found = measure(
        setting.device,
        {
            BARE: bare_product(even.values, queries),
            PAPER: _paper_step(even, shape, queries),
            STEP: _step(even, queries),
            LOG_NORMAL_STEP: _step(ragged, queries),
        },
        seconds=setting.seconds,
        at_once=dict.fromkeys((STEP, LOG_NORMAL_STEP), _AT_ONCE) if setting.gpu else None,
    )
    limit = _PRODUCTS * found[BARE].median
    of_fit = _time_step_of_fit(setting, even)
    paper, own, other = (found[name] for name in (PAPER, STEP, LOG_NORMAL_STEP))
    named = ("step", str(shape), dtype_name(dtype), f"{_PRODUCTS} x {BARE}, {dtype_name(dtype)}")

    def row(what: str, value: float, baseline: str, baseline_value: float, peak: float | None) -> Row:
        group, sizes, kind, products = named
        return Row(group, what, sizes, kind, "ms", value, baseline, baseline_value, products, limit, peak)

    return [
        row(STEP, own.median, f"{PAPER}, float32", paper.median, own.peak_mib),
        row(LOG_NORMAL_STEP, other.median, "uniform lengths, as many tokens", own.median, other.peak_mib),
        row(STEP_OF_FIT, of_fit, f"{PAPER}, float32", paper.median, None),
    ]


def measure_fits(setting: Setting) -> list[Row]:
    """Return the time of a whole fit with the corpus in memory."""
    device, dtype, steps = setting.device, _dtype(setting), _steps(setting)
    batch = _choose_batch(setting)
    corpus = make_tokens(batch._replace(n=8 * batch.n), dtype, device)
    some = corpus.select(slice(batch.n))
    queries = make_queries(batch, device)
    found = measure(
        device,
        {BARE: bare_product(some.values, queries), PAPER: _paper_step(some, batch, queries)},
        seconds=setting.seconds,
    )
    _fit(setting, batch, corpus, 2)  # compiles kernels
    with peak_memory(device) as peak:
        took = _fit(setting, batch, corpus, steps)
    return [
        Row(
            "fit", FIT, f"{batch}, corpus of {len(corpus)}, {steps} steps", dtype_name(dtype), "s", took,
            f"as many steps of {PAPER}, float32", steps * found[PAPER].median / 1e3,
            f"{_PRODUCTS} x {BARE} a step, {dtype_name(dtype)}", steps * _PRODUCTS * found[BARE].median / 1e3,
            peak.mib,
        )
    ]  # fmt: skip


def _dtype(setting: Setting) -> torch.dtype:
    return torch.bfloat16 if setting.gpu else torch.float32


def _steps(setting: Setting) -> int:
    if setting.quick:
        return 4
    return 1000 if setting.gpu else 200


def _choose_batch(setting: Setting) -> Shape:
    """Return the batch of a fit; a CPU gets one that takes seconds."""
    return setting.large if setting.gpu or setting.quick else Shape(64, 64, 384, 96, 4)


def _step(tokens: TokenBatch, queries: Tensor) -> Call:
    """Return a step of a fit with the paper's recipe."""
    weights = queries.clone().requires_grad_()
    adam = Adam([weights], weight_decay=0.0)

    def run() -> None:
        distances, _ = measure_spread(attention_pool(tokens, weights, 1.0))
        (distances.sum() - compute_regularizer(weights, "norm")).backward()  # type: ignore[no-untyped-call]
        adam.step(_RATE)

    return run


def _paper_step(tokens: TokenBatch, shape: Shape, queries: Tensor) -> Call:
    """Return the same step by the definition, in float32 as in the paper's code."""
    padded = tokens.values.float().view(shape.n, shape.s, shape.d)
    weights = queries.clone().requires_grad_()
    adam = torch.optim.Adam([weights], lr=_RATE)

    def run() -> None:
        adam.zero_grad(set_to_none=True)
        distances = squared_distances(Pooled(*paper_pool(padded, weights))).mean(0)
        (distances.sum() - log_norms(weights).sum()).backward()  # type: ignore[no-untyped-call]
        adam.step()

    return run


def _time_step_of_fit(setting: Setting, corpus: TokenBatch) -> float:
    """Return the milliseconds per step, from the difference of a longer and a shorter fit."""
    few, many = (1, 3) if setting.quick else (10, 110) if setting.gpu else (2, 8)
    _fit(setting, setting.large, corpus, few)
    took = sorted(
        _fit(setting, setting.large, corpus, many) - _fit(setting, setting.large, corpus, few) for _ in range(3)
    )
    return 1e3 * took[1] / (many - few)


def _fit(setting: Setting, batch: Shape, corpus: TokenBatch, steps: int) -> float:
    """Return the seconds of a fit."""
    detector = APOOD(
        heads=batch.m, queries=batch.t, recipe="paper", steps=steps, batch_size=batch.n, device=setting.device
    )
    synchronize(setting.device)
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # random tokens are enough for timing
        detector.fit(corpus)
    synchronize(setting.device)
    return time.perf_counter() - started
