"""`audit`: foreign sequences among the training sequences have the lowest scores."""

import numpy as np
import pytest
import torch

import apood
from apood import TokenBatch
from apood.support.errors import InputError
from apood.tokens.batch import Ragged

DIM = 8


def draw(count: int, shift: float, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    around = torch.zeros(DIM)
    around[0], around[1] = 4.0, shift
    lengths = torch.randint(3, 9, (count,), generator=generator).tolist()
    return [torch.randn(length, DIM, generator=generator) + around for length in lengths]


def test_foreign_sequences_come_first():
    scores = apood.audit([*draw(100, 0.0, 0), *draw(4, 12.0, 1)])
    assert scores.shape == (104,) and scores.dtype == np.float64
    assert set(scores.argsort()[:4]) == {100, 101, 102, 103}
    assert abs(np.median(scores)) < 0.2


def test_copies_of_a_foreign_sequence_do_not_hide_it():
    scores = apood.audit([*draw(100, 0.0, 0), *draw(1, 12.0, 1) * 6])
    assert set(scores.argsort()[:6]) == set(range(100, 106))


def test_the_order_of_the_sequences_does_not_matter():
    sequences = [*draw(60, 0.0, 0), *draw(2, 12.0, 1)]
    order = torch.randperm(len(sequences), generator=torch.Generator().manual_seed(2)).tolist()
    mixed = apood.audit([sequences[place] for place in order])
    np.testing.assert_allclose(mixed, apood.audit(sequences)[order], rtol=0, atol=1e-5)


def test_a_document_is_as_foreign_as_its_worst_window():
    sequences = [*draw(60, 0.0, 0), *draw(1, 12.0, 1)]
    windows = torch.tensor([0, 1] * 30 + [2])  # the last document has three windows, the last of which is foreign
    tokens = TokenBatch.from_sequences(sequences)
    whole = tokens.with_channels(window=Ragged.from_lengths(windows, [1] * len(windows)))
    scores = apood.audit(whole)
    assert len(scores) == 30 and scores.argmin() == 29


def test_the_summary_is_compared_too():
    tokens = TokenBatch.from_sequences(draw(60, 0.0, 0))
    rows = torch.randn(60, DIM, generator=torch.Generator().manual_seed(3)) + torch.eye(DIM)[0] * 4
    rows[7] = -rows[7]
    scores = apood.audit(tokens.with_channels(summary=Ragged.from_lengths(rows, [1] * 60)))
    assert scores.argmin() == 7 and apood.audit(tokens).argmin() != 7


def test_too_few_empty_and_equal_sequences_are_refused():
    with pytest.raises(InputError, match="at least 20, got 19"):
        apood.audit(draw(19, 0.0, 0))
    with pytest.raises(InputError, match="Sequence 5 is empty"):
        apood.audit([*draw(5, 0.0, 0), torch.zeros(0, DIM), *draw(30, 0.0, 1)])
    with pytest.raises(InputError, match="the same vector"):
        apood.audit([torch.ones(3, DIM)] * 30)
