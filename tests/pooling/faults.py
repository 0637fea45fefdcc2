"""Batches in which some sequences have a non-finite value."""

from dataclasses import replace

import torch
from builders import random_queries, random_tokens

DIM, _AT = 32, 5
_FAULTS = {1: torch.nan, 3: torch.inf, 5: -torch.inf}  # by the number of the sequence


def faulty_batch(length, dtype, *, last):
    """Return a batch, and the same with non-finite values in the first or last token of some of its sequences."""
    sound = random_tokens([7, length, 3, length, 40, length, 2], DIM, dtype=dtype)
    values = sound.values.clone()
    for sequence, value in _FAULTS.items():
        values[int(sound.offsets[sequence]) + (length - 1 if last else 0), _AT] = value
    return sound, replace(sound, values=values)


def queries():
    """Return heads that multiply infinities by positive and negative numbers, by both, and by 0."""
    chosen = random_queries(4, 2, DIM, dtype=torch.float32, scale=0.2)
    chosen[:3, :, _AT] = torch.tensor([[0.5], [-0.5], [0.0]])
    return chosen


def assert_faults_show(pool, sound, faulty):
    """Assert that each non-finite value shows in every head of its own sequence, and in no other sequence."""
    expected, found = pool(sound), pool(faulty)
    others = [i for i in range(len(sound)) if i not in _FAULTS]
    assert not torch.isfinite(found[list(_FAULTS)]).any()
    torch.testing.assert_close(found[others], expected[others], rtol=1e-5, atol=1e-5)
