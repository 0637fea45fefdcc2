"""What tells the tokens of two model servers apart: numbers computed from the tokens of fixed texts."""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["PROBE_TEXTS", "TOLERANCE", "compare_probes", "make_probe"]

PROBE_TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Return the number of lines in the file, or zero if it is empty.",
    "Die Straßenbahn fährt am Morgen alle 7,5 Minuten.",
    "x = [i ** 2 for i in range(10)]",
)
"""The fixed texts. They are part of every saved probe, so they never change."""

TOLERANCE = 0.02
"""The largest relative difference of two probes of one model: batches, devices and half precision change tokens so."""

_NUMBERS = 4  # per token


def make_probe(tokens: Sequence[npt.NDArray[np.float32]]) -> str:
    """Return a few numbers about the tokens of each fixed text: sums over D with random but fixed signs."""
    dim = tokens[0].shape[1]
    bits = np.unpackbits(np.frombuffer(hashlib.shake_256(b"apood").digest((_NUMBERS * dim + 7) // 8), np.uint8))
    signs = (2.0 * bits[: _NUMBERS * dim].reshape(dim, _NUMBERS) - 1) / np.sqrt(dim)
    return " ".join(f"{number:.5g}" for rows in tokens for number in (rows.astype(np.float64) @ signs).ravel())


def compare_probes(first: str, second: str) -> float:
    """Return the relative difference of two probes: 0 if they are equal, infinite if the texts have other tokens."""
    try:
        one, other = (np.array(probe.split(), dtype=np.float64) for probe in (first, second))
    except ValueError:  # of a file that somebody has changed
        return float("inf")
    if one.shape != other.shape:
        return float("inf")
    scale = max(np.linalg.norm(one), np.linalg.norm(other))
    return float(np.linalg.norm(one - other) / scale) if scale else 0.0
