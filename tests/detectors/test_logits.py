"""Maximum softmax probability and energy against scipy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax, logsumexp, softmax
from sklearn.base import clone

from apood.detectors.fusion import Fusion
from apood.detectors.logits import MSP, Energy
from apood.support.errors import InputError
from apood.tokens.batch import Ragged, TokenBatch

METHODS = pytest.mark.parametrize("kind", [MSP, Energy])
temperatures = st.floats(0.05, 1000)
rows_of_logits = st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=6)


def classified(logits, rows=None):
    values = torch.as_tensor(np.atleast_2d(logits))
    return TokenBatch.without_tokens(logits=Ragged.from_lengths(values, rows or [1] * len(values)))


def read_sequence_by_sequence(monkeypatch):
    for module in ("tokens.source", "detectors.contract.data_checks"):
        monkeypatch.setattr(f"apood.{module}.token_budget", lambda _: 1)


def scores_of(detector, logits):
    batch = classified(logits)
    return detector.fit(batch).score_samples(batch)


@pytest.fixture
def logits():
    return torch.randn(200, 10, generator=torch.Generator().manual_seed(0)) * 5


@pytest.mark.parametrize("temperature", [0.5, 1.0, 20.0, 1000.0])
def test_they_are_the_formulas(logits, temperature):
    known = logits.double().numpy() / temperature
    probabilities = np.exp(scores_of(MSP(temperature), logits))
    np.testing.assert_allclose(probabilities, softmax(known, axis=1).max(1), rtol=1e-6)
    energies = scores_of(Energy(temperature), logits)
    np.testing.assert_allclose(energies, temperature * logsumexp(known, axis=1), rtol=1e-6)


@given(rows_of_logits, temperatures)
def test_msp_is_the_largest_log_probability(row, temperature):
    score = scores_of(MSP(temperature), row)[0]
    assert score == pytest.approx(log_softmax(np.array(row) / temperature).max(), rel=1e-6, abs=1e-12)
    assert -np.log(len(row)) - 1e-9 <= score <= 0


@given(rows_of_logits, st.floats(-1000, 1000), temperatures)
def test_a_shift_of_all_logits_moves_the_energy_and_not_the_probability(row, shift, temperature):
    row = np.array(row)
    near = {"rel": 1e-6, "abs": 1e-6}
    assert scores_of(MSP(temperature), row + shift)[0] == pytest.approx(scores_of(MSP(temperature), row)[0], **near)
    moved = scores_of(Energy(temperature), row + shift)[0]
    assert moved == pytest.approx(scores_of(Energy(temperature), row)[0] + shift, **near)


@given(rows_of_logits, temperatures)
def test_the_energy_is_a_soft_maximum(row, temperature):
    energy = scores_of(Energy(temperature), row)[0]
    assert max(row) - 1e-9 <= energy <= max(row) + temperature * np.log(len(row)) + 1e-9


def test_msp_tells_apart_what_is_nearly_certain():
    margins = np.array([30.0, 40.0, 100.0, 700.0])
    logits = np.stack([margins, np.zeros(4)], 1)
    assert len(set(softmax(logits, axis=1).max(1))) < 4, "as probabilities they are the same"
    scores = scores_of(MSP(), logits)
    assert (np.diff(scores) > 0).all() and (scores < 0).all()
    np.testing.assert_allclose(scores, -np.exp(-margins), rtol=1e-9)


def test_two_classes_that_tie():
    assert scores_of(MSP(), [3.0, 3.0]) == pytest.approx([-np.log(2)])


@METHODS
@pytest.mark.parametrize("temperature", [0, np.inf])
def test_a_bad_temperature_is_refused(kind, temperature):
    with pytest.raises(InputError, match=r"temperature must .*> 0, got "):
        kind(temperature).fit(classified([1.0, 2.0]))


@METHODS
@pytest.mark.parametrize("budget", [None, 1])
def test_a_second_row_of_logits_is_refused_with_the_index_of_its_sequence(kind, budget, monkeypatch):
    wrong = classified(np.zeros((9, 3)), [1, 1, 1, 1, 1, 3, 1])
    wrong = TokenBatch.from_lengths(torch.zeros(7, 4), [1] * 7).with_channels(**wrong.channels)
    if budget:
        read_sequence_by_sequence(monkeypatch)
    detector = kind().fit(classified(np.zeros((5, 3))))
    for action, where in ((kind().fit, "the ID data"), (detector.score_samples, "the data to score")):
        sentence = rf"^Sequence 5 of {where} has more than one row of logits; {kind.name} takes exactly one\.$"
        with pytest.raises(InputError, match=sentence):
            action(wrong)


@METHODS
def test_in_a_fusion_the_index_of_the_sequence_is_the_same(kind, logits, monkeypatch):
    """Members see only a part of the ID sequences, and only the nonempty ones of a batch."""
    fine = TokenBatch.from_lengths(torch.zeros(200, 4), [1] * 200).with_channels(**classified(logits).channels)
    second_row = classified(torch.cat([logits, logits[:1]]), [1] * 150 + [2] + [1] * 49)
    wrong = TokenBatch.from_lengths(torch.zeros(200, 4), [1] * 200).with_channels(**second_row.channels)
    fused = Fusion(members=[Fusion(members=[kind()])])
    detector = clone(fused).fit(fine)
    read_sequence_by_sequence(monkeypatch)
    for action, where in ((fused.fit, "the ID data"), (detector.score_samples, "the data to score")):
        with pytest.raises(InputError, match=rf"^Sequence 150 of {where} has more than one row of logits"):
            action(wrong)


@METHODS
def test_rows_of_another_shape_are_refused(kind):
    flat = TokenBatch.without_tokens(logits=Ragged.from_lengths(torch.zeros(2), [1, 1]))
    with pytest.raises(InputError, match=rf"^{kind.name} takes a row of logits of .* got rows of shape \[\]\.$"):
        kind().fit(flat)


def test_one_class_has_an_energy_but_no_probability_worth_a_look():
    assert scores_of(Energy(2.0), [[3.0], [4.0]]) == pytest.approx([3.0, 4.0])
    with pytest.raises(InputError, match=r"^msp takes a row of logits of at least 2 classes, got rows of shape \[1\]"):
        MSP().fit(classified([[3.0], [4.0]]))
