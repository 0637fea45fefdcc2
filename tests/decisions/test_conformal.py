import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apood.decisions.conformal import conformal_p_values, conformal_threshold, score_tolerance
from apood.support.errors import InputError

TIED = st.one_of(st.integers(-3, 3).map(float), st.sampled_from([-math.inf, math.inf]))
ANY = st.one_of(TIED, st.floats(allow_nan=False))
LEVELS = st.one_of(
    st.integers(1, 99).map(lambda percent: percent / 100), st.integers(1, 999).map(lambda permille: permille / 1000)
)


@given(st.lists(ANY, min_size=1, max_size=40), st.lists(ANY, max_size=20))
def test_p_is_the_share_of_scores_at_most_as_high_with_the_new_one_counted(calibration, scores):
    lowered = [c - score_tolerance(calibration) for c in calibration]
    expected = [(1 + sum(c <= score for c in lowered)) / (len(calibration) + 1) for score in scores]
    assert conformal_p_values(calibration, scores).tolist() == expected


def test_the_ends():
    p = conformal_p_values([1.0, 2.0, 3.0], [-math.inf, 1.0, 2.5, math.inf])
    assert p.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert conformal_p_values([-math.inf, 0.0, math.inf], [-math.inf, math.inf]).tolist() == [0.5, 1.0]


@given(st.lists(ANY, min_size=1, max_size=120), st.lists(ANY, max_size=10), LEVELS)
def test_p_values_and_thresholds_decide_alike(calibration, others, alpha):
    """At every score, on and beside every tie: p <= alpha exactly where the score is below the threshold."""
    scores = np.array(calibration + others + [-math.inf, math.inf])
    refused = conformal_p_values(calibration, scores) <= alpha
    if math.floor((len(calibration) + 1) * Fraction(str(alpha))) == 0:
        assert not refused.any()
        with pytest.raises(InputError, match="needs at least"):
            conformal_threshold(calibration, 1 - alpha)
    else:
        assert refused.tolist() == (scores < conformal_threshold(calibration, 1 - alpha)).tolist()


def test_they_decide_alike_at_every_calibration_size():
    for n in [*range(1, 130), 999, 1999]:
        calibration = np.arange(float(n))
        scores = np.arange(-0.5, n, 0.5)
        p = conformal_p_values(calibration, scores)
        for percent in range(1, 100):
            if (n + 1) * percent >= 100:
                threshold = conformal_threshold(calibration, (100 - percent) / 100)
                assert np.array_equal(p <= percent / 100, scores < threshold), (n, percent)


@given(st.lists(TIED, min_size=2, max_size=60), LEVELS)
def test_the_guarantee_holds_for_any_scores(scores, alpha):
    small = sum(conformal_p_values(scores[:i] + scores[i + 1 :], [scores[i]])[0] <= alpha for i in range(len(scores)))
    assert Fraction(small, len(scores)) <= Fraction(str(alpha))


def test_tensors_in_numpy_out():
    p = conformal_p_values(torch.arange(9.0), torch.tensor([3.0], dtype=torch.float16))
    assert isinstance(p, np.ndarray)
    assert p.dtype == np.float64
    assert p.tolist() == [0.5]


def test_what_cannot_be_used_is_refused():
    with pytest.raises(InputError, match="at least one calibration score"):
        conformal_p_values([], [1.0])
    with pytest.raises(InputError, match="calibration scores hold 1 NaN of 2, the first at index 1"):
        conformal_p_values([0.0, math.nan], [1.0])
    with pytest.raises(InputError, match="The scores hold 1 NaN of 1, the first at index 0"):
        conformal_p_values([0.0], [math.nan])
