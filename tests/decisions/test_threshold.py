import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apood.decisions.conformal import (
    Calibration,
    as_scores,
    check_level,
    conformal_threshold,
    score_tolerance,
)
from apood.support.errors import InputError

TIED = st.one_of(st.integers(-3, 3).map(float), st.sampled_from([-math.inf, math.inf]))


def test_the_threshold_is_the_kth_smallest_for_every_percentage():
    scores = np.random.default_rng(0).permutation(np.arange(1.0, 100.0))
    for percent in range(1, 100):
        assert conformal_threshold(scores, percent / 100) == 100 - percent - score_tolerance(scores)
        assert conformal_threshold(scores, 1 - percent / 100) == percent - score_tolerance(scores)


def test_the_default_accepts_95_percent():
    assert conformal_threshold(range(19)) == 0.0 - score_tolerance(range(19))
    assert conformal_threshold(range(39)) == 1.0 - score_tolerance(range(39))


@pytest.mark.parametrize(("accept", "needed"), [(0.5, 1), (0.9, 9), (0.95, 19), (0.99, 99), (0.999, 999), (0.97, 33)])
def test_too_few_scores_are_refused_with_the_size_needed(accept, needed):
    assert conformal_threshold(range(needed), accept) == 0.0 - score_tolerance(range(needed))
    with pytest.raises(InputError, match=rf"accept rate of {accept} needs at least {needed} .* got {needed - 1}\."):
        conformal_threshold(range(needed - 1), accept)


@given(st.lists(TIED, min_size=20, max_size=60), st.integers(1, 95))
def test_the_guarantee_holds_for_any_scores(scores, percent):
    """Each of n + 1 exchangeable scores is equally likely to be the new one, so the refused ones can be counted."""
    refused = sum(
        scores[i] < conformal_threshold(scores[:i] + scores[i + 1 :], percent / 100) for i in range(len(scores))
    )
    assert Fraction(refused, len(scores)) <= 1 - Fraction(percent, 100)


def test_without_ties_the_guarantee_is_not_wasteful():
    scores = list(np.random.default_rng(1).normal(size=100))
    refused = sum(scores[i] < conformal_threshold(scores[:i] + scores[i + 1 :], 0.95) for i in range(100))
    assert refused == 5


def test_infinite_scores():
    assert conformal_threshold([-math.inf] + [1.0] * 18) == -math.inf
    assert conformal_threshold([-math.inf] + [1.0] * 38) == 1.0 - 1e-6
    assert conformal_threshold([math.inf] * 19) == math.inf


def test_a_score_of_minus_infinity_is_refused_even_by_a_threshold_of_minus_infinity():
    calibration = Calibration.from_scores([-math.inf] + [1.0] * 18, 0.95)
    assert calibration.subtract_threshold([-math.inf, -1e9]).tolist() == [-math.inf, math.inf]
    assert calibration.accepts([-math.inf, -1e9]).tolist() == [False, True]


def test_an_infinite_score_is_accepted_by_an_infinite_threshold():
    calibration = Calibration.from_scores([math.inf] * 19, 0.95)
    assert calibration.subtract_threshold([math.inf, 1.0, -math.inf]).tolist() == [0.0, -math.inf, -math.inf]
    assert calibration.accepts([math.inf, 1.0, -math.inf]).tolist() == [True, False, False]


def test_the_tolerance_is_above_rounding_and_below_what_matters():
    scores = np.random.default_rng(2).normal(size=1000)
    assert score_tolerance(scores) == pytest.approx(1e-3 * 2 * 1.645, rel=0.1)
    assert score_tolerance(scores, coarse=True) == pytest.approx(1e-2 * 2 * 1.645, rel=0.1)
    assert score_tolerance([*scores, -1e30, -math.inf, math.inf]) == pytest.approx(score_tolerance(scores), rel=0.02)
    assert score_tolerance([5.0] * 20) == pytest.approx(5e-6) and score_tolerance([-math.inf]) == 0.0
    assert math.isfinite(score_tolerance([-1.7e308, 1.7e308]))


@pytest.mark.parametrize(("coarse", "rounding"), [(False, 6e-4), (True, 6e-3)])
@pytest.mark.parametrize("n", [19, 20, 100])
def test_the_promise_holds_with_repeats_whose_scores_are_rounded_differently(n, coarse, rounding):
    """30% of the inputs are one phrase at a low score; every score has an error like those of encoders.

    Without a tolerance the phrase is refused about half of the time if its score is the threshold.
    """
    rng, repetitions, new = np.random.default_rng(n), 1000, 20
    accepted, refused_by_p, phrase = [], [], []
    for _ in range(repetitions):
        scores = rng.normal(size=n + new)
        repeated = rng.random(n + new) < 0.3
        scores[repeated] = -1.645
        scores += rounding * rng.uniform(-1, 1, size=n + new)
        calibration = Calibration.from_scores(scores[:n], 0.95, coarse=coarse)
        accepts = calibration.accepts(scores[n:])
        accepted.append(accepts.mean())
        refused_by_p.append((calibration.p_values(scores[n:]) <= 0.05).mean())
        if abs(calibration.threshold + score_tolerance(scores[:n], coarse=coarse) + 1.645) < 0.01:
            phrase.extend(accepts[repeated[n:]])
    error = 3 * np.std(accepted) / math.sqrt(repetitions)
    assert np.mean(accepted) >= 0.95 - error and np.mean(refused_by_p) <= 0.05 + error
    assert len(phrase) > 100 and all(phrase)


@pytest.mark.parametrize("accept", [0.0, 1.0, -0.1, 95, math.nan, 1 - 1e-12, "0.9", None])
def test_accept_rates_outside_of_0_to_1_are_refused(accept):
    with pytest.raises(InputError, match=r"accept must be a number strictly between 0 and 1.*got"):
        conformal_threshold(range(100), accept)


def test_a_level_is_the_fraction_that_was_written():
    assert check_level(0.95, "level") == Fraction(19, 20)
    assert check_level(1 - 0.93, "level") == Fraction(7, 100)
    assert check_level(np.float64(0.999), "level") == Fraction(999, 1000)


@pytest.mark.parametrize(
    "scores",
    [
        [0.5, -2.0],
        (0.5, -2.0),
        np.array([0.5, -2.0], dtype=np.float16),
        torch.tensor([0.5, -2.0], dtype=torch.bfloat16),
        torch.tensor([0.5, -2.0], requires_grad=True),
        [torch.tensor(0.5), np.float32(-2.0)],
    ],
)
def test_scores_are_read_from_lists_arrays_and_tensors(scores):
    vector = as_scores(scores, "scores")
    assert vector.dtype == np.float64
    assert vector.tolist() == [0.5, -2.0]


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([1.0, math.nan, math.nan], r"ID scores hold 2 NaN of 3, the first at index 1"),
        (torch.tensor([math.nan]), r"ID scores hold 1 NaN of 1, the first at index 0"),
        ([[1.0, 2.0]], r"ID scores must be one-dimensional.*got shape \(1, 2\)"),
        (3.0, r"ID scores must be one-dimensional.*got shape \(\)"),
        (["high", "low"], r"ID scores must be numbers.*got list"),
        ([[1.0], [1.0, 2.0]], r"ID scores must be numbers.*got list"),
    ],
)
def test_what_is_no_vector_of_scores_is_refused(scores, message):
    with pytest.raises(InputError, match=message):
        as_scores(scores, "ID scores")
