"""Encoders and batches are shown in one short line, without their numbers."""

from collections.abc import Callable
from pathlib import Path

from apood import TextEncoder


def test_encoders_and_batches_are_short(models: Callable[[str], Path]) -> None:
    encoder = TextEncoder(models("bert"), max_tokens=16, device="cpu")
    assert repr(encoder) == (
        "TextEncoder('bert', layers='mix', mode='input', max_tokens=16, on_long='windows', dim=16, device='cpu')"
    )
    batch = encoder.encode(["word1 word2", "word3"])
    assert repr(batch).startswith("TokenBatch(sequences=2, tokens=7, dim=16, dtype=float32, channels=['input_ids',")
