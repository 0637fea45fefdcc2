"""Perplexity against its definition."""

import numpy as np
import pytest
import torch
from builders import side_channels

from apood.detectors.perplexity import Perplexity
from apood.support.errors import InputError
from apood.tokens.batch import Ragged, TokenBatch


def outputs(*logprobs):
    values = torch.cat([torch.as_tensor(row, dtype=torch.float32) for row in logprobs])
    return TokenBatch.without_tokens(token_logprobs=Ragged.from_lengths(values, [len(row) for row in logprobs]))


def test_it_is_minus_the_logarithm_of_the_perplexity():
    batch = TokenBatch.without_tokens(**side_channels(50, seed=1, rows=(1, 40)))
    scores = Perplexity().fit(batch).score_samples(batch)
    channel = batch.channels["token_logprobs"]
    # the perplexity is the geometric mean of the inverse probabilities
    perplexities = [np.exp(row.double().numpy()) for row in channel]
    perplexities = [np.prod(p ** (-1 / len(p))) for p in perplexities]
    np.testing.assert_allclose(scores, -np.log(perplexities), rtol=1e-6)


def test_length_does_not_matter():
    batch = outputs([-1.0, -3.0], [-2.0], [-2.0] * 1000)
    assert Perplexity().fit(batch).score_samples(batch).tolist() == [-2.0, -2.0, -2.0]


def test_a_long_sequence_is_summed_in_double():
    batch = outputs(torch.full((2_000_000,), -0.1))
    score = Perplexity().fit(batch).score_samples(batch)[0]
    assert score == pytest.approx(float(torch.tensor(-0.1)), rel=1e-9)


def test_what_is_no_log_probability_is_refused():
    """Negative log-probabilities and probabilities would reverse every score."""
    fine = outputs([-1.0], [0.05, -2.0])  # above 0 only by rounding
    detector = Perplexity().fit(fine)
    assert np.isfinite(detector.score_samples(fine)).all()
    for wrong in (outputs([-1.0], [-1.0, 2.0], [3.0]), outputs([-1.0], [0.7])):
        for action in (Perplexity().fit, detector.score_samples):
            with pytest.raises(InputError, match=r"Sequence 1 of .* token_logprobs above 0"):
                action(wrong)


def test_rows_of_another_shape_are_refused():
    wide = TokenBatch.without_tokens(token_logprobs=Ragged.from_lengths(torch.full((3, 2), -1.0), [1, 2]))
    sentence = r"^A row of token_logprobs must be one log-probability, of shape \[\], got shape \[2\]\.$"
    with pytest.raises(InputError, match=sentence):
        Perplexity().fit(wide)
    with pytest.raises(InputError, match=sentence):
        Perplexity().fit(outputs([-1.0])).score_samples(wide)
