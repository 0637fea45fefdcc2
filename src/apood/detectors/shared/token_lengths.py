"""The lengths of tokens: whether they are a coordinate like others, or a scale that would outweigh all of them."""

import torch

from apood.detectors.shared.sinks import draw_probe, find_sinks, leave_out
from apood.tokens.source import TokenSource

__all__ = ["compare_lengths", "lengths_outweigh"]

_MOST = 5.0  # 0.4 to 3 for vectors of many kinds and means over layers, 9 to 115 for single layers of language models


def compare_lengths(source: TokenSource) -> float:
    """Return the variance of the lengths |z| of tokens, relative to the mean variance along a coordinate.

    It is measured on some of the sequences, without sinks.
    """
    z = draw_probe(leave_out(find_sinks(source), source), torch.Generator().manual_seed(0)).values.double()
    along = float(z.var(0, correction=0).mean())
    return float(torch.linalg.vector_norm(z, dim=1).var(correction=0)) / max(along, torch.finfo(torch.float64).tiny)


def lengths_outweigh(source: TokenSource) -> bool:
    """Return whether lengths vary far more than tokens do along a coordinate, so that they would hide directions."""
    return compare_lengths(source) > _MOST
