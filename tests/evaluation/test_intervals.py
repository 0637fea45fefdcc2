from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import binomtest

from apood.evaluation.metrics import Estimate, delong, percentiles


@pytest.mark.parametrize(
    ("truth", "n_positive", "n_negative"), [(0.7, 60, 60), (0.9, 200, 50), (0.97, 100, 100), (0.995, 300, 300)]
)
def test_delong_covers_the_truth_95_times_in_100(truth, n_positive, n_negative):
    generator = np.random.default_rng(0)
    shift = NormalDist().inv_cdf(truth) * np.sqrt(2)
    inside = []
    for _ in range(1000):
        estimate = delong(generator.normal(shift, 1, n_positive), generator.normal(0, 1, n_negative))
        inside.append(estimate.low <= truth <= estimate.high)
    assert 0.92 <= np.mean(inside) <= 0.98


def test_delong_agrees_with_a_bootstrap():
    generator = np.random.default_rng(1)
    positive, negative = generator.normal(1, 1, 250), generator.normal(0, 2, 150)
    resampled = [delong(generator.choice(positive, 250), generator.choice(negative, 150)).value for _ in range(2000)]
    estimate = delong(positive, negative)
    assert estimate.high - estimate.low == pytest.approx(np.subtract(*np.quantile(resampled, [0.975, 0.025])), rel=0.1)


def test_the_variance_is_delongs():
    """Compared on the logit scale with the definition: variances of the share of opponents that each score beats."""
    positive, negative = np.array([3.0, 1.0, 4.0, 1.0, 5.0]), np.array([0.0, 1.0, 2.0, 3.5])
    beats = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    variance = beats.mean(1).var(ddof=1) / 5 + beats.mean(0).var(ddof=1) / 4
    value, low, high = delong(positive, negative)
    assert value == pytest.approx(beats.mean())
    logits = np.log([low / (1 - low), high / (1 - high)])
    reach = 1.959964 * np.sqrt(variance) / (value * (1 - value))
    assert logits == pytest.approx(np.log(value / (1 - value)) + np.array([-reach, reach]), rel=1e-6)


@pytest.mark.parametrize(
    ("positive", "negative", "share", "pairs"),
    [
        (np.arange(1.0, 501), -np.arange(500.0), 1.0, 500),
        (-np.arange(1.0, 501), np.arange(40.0), 0.0, 40),
        (np.array([1.0]), np.array([0.0, 2.0]), 0.5, 1),
    ],
)
def test_without_a_variance_it_is_the_wilson_interval_of_independent_pairs(positive, negative, share, pairs):
    expected = binomtest(round(share * pairs), pairs).proportion_ci(method="wilson")
    estimate = delong(positive, negative)
    assert estimate.value == share
    if share in (0.0, 1.0):
        assert [estimate.low, estimate.high] == pytest.approx([expected.low, expected.high], abs=1e-12)
    assert 0 <= estimate.low < estimate.high <= 1


def test_equal_scores_leave_the_auroc_uncertain():
    estimate = delong(np.zeros(100), np.zeros(100))
    assert estimate == pytest.approx((0.5, 0.404, 0.596), abs=0.001)


def test_percentiles_hold_the_value():
    assert percentiles(2.0, np.linspace(0, 1, 1001)) == pytest.approx(Estimate(2.0, 0.025, 2.0))
    assert percentiles(0.5, np.linspace(0, 1, 1001)) == pytest.approx(Estimate(0.5, 0.025, 0.975))
