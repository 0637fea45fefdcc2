"""Sequence-level entropy against its definition, and its samples in chunks."""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import side_channels
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from apood.detectors.contract.artefact import load_detector
from apood.detectors.entropy import Entropy, pool_samples
from apood.pooling.algebra import merge, merge_sequences
from apood.support.errors import InputError
from apood.tokens.batch import Ragged, TokenBatch

temperatures = st.sampled_from([0.1, 1.0, 7.0, math.inf])


def inputs(*samples):
    """Return inputs; each argument is a list of (log-probability, number of tokens), one per sample of an input."""
    rows = torch.tensor([row for own in samples for row in own], dtype=torch.float64).view(-1, 2)
    return TokenBatch.without_tokens(sample_logprobs=Ragged.from_lengths(rows, [len(own) for own in samples]))


def reference(rows, temperature):
    """Return -H by the formula; `softmax` gives π_s ∝ P^(1/T)."""
    log_probability, tokens = np.asarray(rows, dtype=np.float64).T
    return (softmax(log_probability / temperature) * log_probability / tokens).sum()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 10.0, math.inf])
def test_it_is_the_formula(temperature):
    batch = TokenBatch.without_tokens(**side_channels(40, seed=1, rows=(1, 30)))
    scores = Entropy(temperature).fit(batch).score_samples(batch)
    expected = [reference(rows, temperature) for rows in batch.channels["sample_logprobs"]]
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


def test_without_a_temperature_it_is_the_mean():
    batch = inputs([(-4.0, 2), (-1.0, 1), (-900.0, 300)])
    assert Entropy(math.inf).fit(batch).score_samples(batch) == pytest.approx([-2.0])


def test_plain_samples_with_equal_weights_estimate_the_entropy():
    """The claim of the docstring about the temperature, on a known distribution over one-token outputs."""
    probabilities = np.array([0.6, 0.3, 0.1])
    truth = (probabilities * np.log(probabilities)).sum()
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(torch.from_numpy(probabilities), 20_000, replacement=True, generator=generator)
    plain = inputs([(math.log(probabilities[i]), 1) for i in drawn.tolist()])
    distinct = inputs([(math.log(p), 1) for p in probabilities])
    assert Entropy(math.inf).fit(plain).score_samples(plain)[0] == pytest.approx(truth, abs=0.02)
    assert Entropy(1.0).fit(distinct).score_samples(distinct)[0] == pytest.approx(truth, abs=1e-12)
    for samples, wrong in ((plain, 1.0), (distinct, math.inf)):
        assert abs(Entropy(wrong).fit(samples).score_samples(samples)[0] - truth) > 0.1


def test_improbable_outputs_do_not_underflow():
    batch = inputs([(-100_000.0, 100), (-100_001.0, 100)], [(-3e38, 1), (-3e38, 1)])
    scores = Entropy().fit(batch).score_samples(batch)
    weights = softmax([0.0, -1.0])
    assert scores == pytest.approx([-(weights[0] * 1000 + weights[1] * 1000.01), -3e38])


samples_of_an_input = st.lists(st.tuples(st.floats(-500, 0), st.integers(1, 300)), min_size=1, max_size=12)


@given(samples_of_an_input, temperatures, st.data())
def test_samples_in_any_chunks_give_the_value_of_the_whole(rows, temperature, data):
    samples = torch.tensor(rows, dtype=torch.float64)
    order = data.draw(st.permutations(range(len(rows))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=5)))  # equal cuts leave a chunk empty
    chunks = torch.tensor_split(samples[order], cuts)
    merged = functools.reduce(merge, [merge_sequences(pool_samples(chunk, temperature)) for chunk in chunks])
    batch = inputs(rows)
    score = Entropy(temperature).fit(batch).score_samples(batch)[0]
    assert -float(merged.value) == pytest.approx(score, rel=1e-9, abs=1e-12)
    assert score == pytest.approx(reference(rows, temperature), rel=1e-9, abs=1e-12)


@given(samples_of_an_input, temperatures)
def test_the_entropy_lies_between_those_of_the_samples(rows, temperature):
    own = [log_probability / tokens for log_probability, tokens in rows]
    batch = inputs(rows)
    assert min(own) - 1e-9 <= Entropy(temperature).fit(batch).score_samples(batch)[0] <= max(own) + 1e-9


@pytest.mark.parametrize("temperature", [0, -math.inf])
def test_a_bad_temperature_is_refused(temperature):
    with pytest.raises(InputError, match=r"temperature must .*> 0, got "):
        Entropy(temperature).fit(inputs([(-1.0, 1)]))


def test_an_infinite_temperature_survives_saving(tmp_path):
    batch = inputs([(-4.0, 2), (-1.0, 1)])
    Entropy(math.inf).fit(batch).save(tmp_path / "entropy")
    loaded = load_detector(tmp_path / "entropy")
    assert loaded.temperature == math.inf and loaded.score_samples(batch).tolist() == [-1.5]


@pytest.mark.parametrize("row", [(1.0, 5), (-1.0, 0), (-1.0, 0.5), (-1.0, -3)])
def test_what_is_no_sample_is_refused(row):
    fine = inputs([(-1.0, 2)], [(0.05, 1)])  # above 0 only by rounding
    detector = Entropy().fit(fine)
    for action in (Entropy().fit, detector.score_samples):
        with pytest.raises(InputError, match=r"Sequence 1 of .* sample_logprobs"):
            action(inputs([(-1.0, 2)], [(-1.0, 2), row]))


def test_rows_of_another_shape_are_refused():
    flat = TokenBatch.without_tokens(sample_logprobs=Ragged.from_lengths(torch.full((3,), -1.0), [1, 2]))
    sentence = r"^A row of sample_logprobs must be the log-probability .*, of shape \[2\], got shape \[\]\.$"
    with pytest.raises(InputError, match=sentence):
        Entropy().fit(flat)


def test_the_default_follows_how_the_samples_were_drawn():
    rows = Ragged.from_lengths(torch.tensor([[-1.0, 2.0], [-5.0, 3.0]], dtype=torch.float64), [2])
    batch = TokenBatch.without_tokens(sample_logprobs=rows)
    plain = replace(batch, encoder={"model": "a", "samples": 2, "sample_tokens": 8, "seed": 0})
    assert Entropy().fit(plain).score_samples(plain)[0] == pytest.approx(reference(rows.values.numpy(), math.inf))
    assert Entropy().fit(batch).score_samples(batch)[0] == pytest.approx(reference(rows.values.numpy(), 1.0))
    assert Entropy(1.0).fit(plain).score_samples(plain)[0] == pytest.approx(reference(rows.values.numpy(), 1.0))
