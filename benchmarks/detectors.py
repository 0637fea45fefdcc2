"""Scoring through detectors, of a batch and of one sequence at a time, compared with the bare matrix product."""

import warnings
from typing import NamedTuple

import torch

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.contract.base import Detector
from apood.detectors.mahalanobis import Mahalanobis
from apood.pooling import FrozenPool
from apood.support.errors import FitWarning
from apood.tokens.batch import dtype_name
from benchmarks.inputs import BARE, PAPER, Setting, Shape, bare_product, make_queries, make_tokens, paper_pool
from benchmarks.pooling import FROZEN
from benchmarks.record import Row
from benchmarks.timing import Call, measure

__all__ = ["AP_OOD", "MAHALANOBIS", "fit_detectors", "measure_latency", "measure_rows"]

AP_OOD = "AP-OOD score_samples"
MAHALANOBIS = "Mahalanobis score_samples"
_READ = "reading the tokens once (half a copy)"


class _Fitted(NamedTuple):
    ap_ood: Detector
    mahalanobis: Detector


def fit_detectors(shape: Shape, dtype: torch.dtype, device: str) -> _Fitted:
    """Return detectors for timing only, fitted on short random sequences."""
    train = make_tokens(shape._replace(n=2 * shape.d, s=2), dtype, device)
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore", FitWarning)
        ap_ood = APOOD(heads=shape.m, queries=shape.t, steps=1, recipe="paper", device=device).fit(train)
        return _Fitted(ap_ood, Mahalanobis().fit(train))


@torch.no_grad()
def measure_rows(setting: Setting) -> list[Row]:
    """Return the time to score a batch."""
    return [row for dtype in (torch.bfloat16, torch.float32) for row in _batch_rows(setting, dtype)]


def _batch_rows(setting: Setting, dtype: torch.dtype) -> list[Row]:
    shape, device = setting.small, setting.device
    tokens, queries = make_tokens(shape, dtype, device), make_queries(shape, device)
    padded, room = tokens.values.view(shape.n, shape.s, shape.d), torch.empty_like(tokens.values)
    detectors = fit_detectors(shape, dtype, device)
    product = dtype_name(dtype) if setting.gpu else "float32"  # a CPU multiplies in float32
    found = measure(
        device,
        {
            BARE: bare_product(tokens.values.to(getattr(torch, product)), queries),
            "copy": lambda: room.copy_(tokens.values),
            PAPER: lambda: paper_pool(padded, queries),
            AP_OOD: lambda: detectors.ap_ood.score_samples(tokens),
            MAHALANOBIS: lambda: detectors.mahalanobis.score_samples(tokens),
        },
        seconds=setting.seconds / 2,
    )
    paper, ours, simple = (found[name] for name in (PAPER, AP_OOD, MAHALANOBIS))
    sizes, name = str(shape), dtype_name(dtype)
    return [
        Row(
            "scoring", AP_OOD, sizes, name, "ms", ours.median, PAPER, paper.median,
            f"{BARE}, {product}", found[BARE].median, ours.peak_mib,
        ),
        Row(
            "scoring", MAHALANOBIS, sizes, name, "ms", simple.median, AP_OOD, ours.median,
            _READ, found["copy"].median / 2, simple.peak_mib,
        ),
    ]  # fmt: skip


@torch.no_grad()
def measure_latency(setting: Setting) -> list[Row]:
    """Return the time to score one sequence: the median and the 95th percentile."""
    dtype = torch.bfloat16 if setting.gpu else torch.float32
    lengths = (16, 32) if setting.quick else (16, 32, 64, 128, 256, 512)
    detectors = fit_detectors(setting.small, dtype, setting.device)
    pool = FrozenPool(make_queries(setting.small, setting.device), 1.0)
    return [row for s in lengths for row in _latency(setting, dtype, s, detectors, pool)]


def _latency(setting: Setting, dtype: torch.dtype, length: int, detectors: _Fitted, pool: FrozenPool) -> list[Row]:
    shape = setting.small._replace(n=1, s=length)
    tokens, queries = make_tokens(shape, dtype, setting.device), make_queries(shape, setting.device)
    contenders: dict[str, Call] = {
        BARE: bare_product(tokens.values, queries),
        PAPER: lambda: paper_pool(tokens.values[None], queries),
        FROZEN: lambda: pool(tokens),
        AP_OOD: lambda: detectors.ap_ood.score_samples(tokens),
        MAHALANOBIS: lambda: detectors.mahalanobis.score_samples(tokens),
    }
    found = measure(setting.device, contenders, seconds=setting.seconds / 3, alone=True)
    product = f"{BARE}, {dtype_name(dtype)}"
    return [
        Row(
            "latency", f"{name}, {label}", str(shape), dtype_name(dtype), "ms", found[name].percentile(share),
            f"{PAPER}, {label}", found[PAPER].percentile(share),
            product if name != MAHALANOBIS else "",  # a mean needs no product
            found[BARE].percentile(share) if name != MAHALANOBIS else None,
            found[name].peak_mib,
        )
        for name in (FROZEN, AP_OOD, MAHALANOBIS)
        for label, share in (("median", 0.5), ("95%", 0.95))
    ]  # fmt: skip
