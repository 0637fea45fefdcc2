import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from apood.decisions.conformal import benjamini_hochberg, conformal_p_values
from apood.support.errors import InputError


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.2, 0.9])
def test_selects_as_scipy_does(rate):
    generator = np.random.default_rng(0)
    selected = 0
    for size in (1, 2, 10, 300):
        p = generator.beta(0.3, 1.5, size=size)
        ours = benjamini_hochberg(p, rate)
        assert ours.tolist() == (false_discovery_control(p) <= rate).tolist()
        selected += ours.sum()
    assert 0 < selected < 313


@pytest.mark.parametrize("percent", [1, 5, 7, 10, 30])
def test_rounding_does_not_decide_at_the_bound(percent):
    for size in range(1, 31):
        for count in range(1, size + 1):
            meets = [percent * count / (100 * size)] * count + [1.0] * (size - count)
            misses = [(percent * count + 1) / (100 * size)] * count + [1.0] * (size - count)
            assert benjamini_hochberg(meets, percent / 100).sum() == count
            assert not benjamini_hochberg(misses, percent / 100).any()


@given(st.integers(1, 60), st.data(), st.sampled_from([1, 5, 7, 10, 25]))
def test_selects_on_the_grid_of_conformal_p_values_as_exact_arithmetic_does(n, data, percent):
    ranks = data.draw(st.lists(st.integers(1, n + 1), min_size=1, max_size=30))
    ordered = sorted(ranks)
    below = [
        r for i, r in enumerate(ordered, 1) if Fraction(r, n + 1) <= Fraction(percent, 100) * Fraction(i, len(ranks))
    ]
    expected = [rank <= max(below, default=0) for rank in ranks]
    assert benjamini_hochberg(np.array(ranks) / (n + 1), percent / 100).tolist() == expected


def test_few_of_the_calls_are_false_alarms():
    generator = np.random.default_rng(3)
    shares, found = [], []
    for _ in range(300):
        calibration = generator.normal(size=500)
        batch = np.concatenate([generator.normal(size=80), generator.normal(-4, size=20)])
        called = benjamini_hochberg(conformal_p_values(calibration, batch), rate=0.2)
        shares.append(called[:80].sum() / max(called.sum(), 1))
        found.append(called[80:].mean())
    assert 0.08 < np.mean(shares) < 0.2
    assert np.mean(found) > 0.8


def test_an_empty_batch_selects_nothing():
    assert benjamini_hochberg([]).tolist() == []


def test_the_default_rate_is_5_percent():
    assert benjamini_hochberg([0.05]).tolist() == [True]
    assert benjamini_hochberg([0.0501]).tolist() == [False]


@pytest.mark.parametrize(
    ("p_values", "rate", "message"),
    [
        ([0.5, 1.5], 0.05, r"between 0 and 1, got 1.5 at index 1"),
        ([-0.1], 0.05, r"between 0 and 1, got -0.1 at index 0"),
        ([0.1, math.nan], 0.05, r"The p-values hold 1 NaN of 2, the first at index 1"),
        ([0.1], 0.0, r"rate must be a number strictly between 0 and 1.*got 0.0"),
        ([0.1], 1.0, r"rate must be a number strictly between 0 and 1.*got 1.0"),
    ],
)
def test_what_cannot_be_used_is_refused(p_values, rate, message):
    with pytest.raises(InputError, match=message):
        benjamini_hochberg(p_values, rate)
