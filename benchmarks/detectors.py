"""Whole detectors: what a score costs beyond the matrix product, and beside Mahalanobis."""

import warnings

import torch

from apood.detectors.ap_ood import APOOD
from apood.detectors.mahalanobis import Mahalanobis
from apood.support.errors import FitWarning
from apood.tokens.batch import TokenBatch
from benchmarks.timing import Row, best_times

__all__ = ["rows"]

_N, _S, _D, _M, _T = 32, 512, 1024, 256, 4
_BARE = "matrix product Z Wᵀ, float32"


def rows(device: str) -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(_N * _S, _D, generator=generator).to(device)
    tokens = TokenBatch.from_lengths(values, [_S] * _N)
    flat = torch.randn(_M * _T, _D, generator=generator).to(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # 32 sequences are for timing, not for detecting
        detector = APOOD(heads=_M, queries=_T, steps=1, device=device).fit(tokens)
    mahalanobis = Mahalanobis().fit(tokens)
    contenders = {
        _BARE: lambda: values @ flat.T,
        "AP-OOD score_samples": lambda: detector.score_samples(tokens),
        "Mahalanobis score_samples": lambda: mahalanobis.score_samples(tokens),
    }
    best = best_times(contenders)
    bare = best.pop(_BARE)
    return [Row(name, f"N={_N} S={_S} D={_D} M={_M} T={_T}", _BARE, bare, seconds) for name, seconds in best.items()]
