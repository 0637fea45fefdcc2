import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from apood.evaluation.metrics import aupr_id, aupr_ood, auroc, fpr95, fpr_at_tpr
from apood.support.errors import InputError

METRICS = [auroc, aupr_id, aupr_ood, fpr95]
SCORES = st.lists(
    st.one_of(st.integers(-4, 4).map(float), st.sampled_from([-math.inf, math.inf])), min_size=1, max_size=30
)


def as_labelled_ranks(id_scores, ood_scores):
    """What scikit-learn can digest: it refuses infinities, so it gets ranks."""
    _, ranks = np.unique(np.concatenate([id_scores, ood_scores]), return_inverse=True)
    return np.repeat([1, 0], [len(id_scores), len(ood_scores)]), ranks


@settings(deadline=None)
@given(SCORES, SCORES)
def test_values_are_those_of_scikit_learn_with_ties_and_infinities(id_scores, ood_scores):
    labels, ranks = as_labelled_ranks(id_scores, ood_scores)
    assert auroc(id_scores, ood_scores).value == pytest.approx(roc_auc_score(labels, ranks), abs=1e-12)
    assert aupr_id(id_scores, ood_scores).value == pytest.approx(average_precision_score(labels, ranks), abs=1e-12)
    assert aupr_ood(id_scores, ood_scores).value == pytest.approx(
        average_precision_score(1 - labels, -ranks), abs=1e-12
    )


@given(SCORES, SCORES, st.integers(1, 99))
def test_fpr_is_the_share_of_ood_above_the_largest_threshold_that_keeps_enough_id(id_scores, ood_scores, percent):
    keeping = [t for t in id_scores if 100 * sum(s >= t for s in id_scores) >= percent * len(id_scores)]
    expected = sum(s >= max(keeping) for s in ood_scores) / len(ood_scores)
    assert fpr_at_tpr(id_scores, ood_scores, percent / 100).value == expected


def test_fpr95_is_the_point_of_the_roc_curve():
    generator = np.random.default_rng(0)
    id_scores, ood_scores = generator.normal(1, 1, 400), generator.normal(size=333)
    labels, ranks = as_labelled_ranks(id_scores, ood_scores)
    fpr, tpr, _ = roc_curve(labels, ranks, drop_intermediate=False)
    assert fpr95(id_scores, ood_scores).value == pytest.approx(fpr[tpr >= 0.95].min())


def test_fpr95_of_20_id_scores_gives_up_exactly_one():
    assert fpr95(range(20), [0.0, 0.5, 0.99, 1.0]).value == 0.25
    assert fpr95(range(19), [0.0, 0.5, 0.99, -1.0]).value == 0.75


@pytest.mark.parametrize("metric", METRICS)
def test_only_the_order_counts(metric):
    generator = np.random.default_rng(1)
    id_scores, ood_scores = generator.normal(1, 1, 100), generator.normal(size=80)
    assert metric(np.exp(id_scores), np.exp(ood_scores)) == metric(id_scores, ood_scores)
    assert metric(generator.permutation(id_scores), ood_scores).value == pytest.approx(
        metric(id_scores, ood_scores).value, abs=1e-12
    )


@pytest.mark.parametrize("metric", METRICS)
@settings(deadline=None, max_examples=40)
@given(id_scores=SCORES, ood_scores=SCORES)
def test_intervals_hold_the_value_and_stay_in_0_to_1(metric, id_scores, ood_scores):
    value, low, high = metric(id_scores, ood_scores)
    assert 0 <= low <= value <= high <= 1


@pytest.mark.parametrize("metric", METRICS)
def test_every_call_gives_the_same_plain_floats_and_leaves_global_randomness_alone(metric):
    id_scores, ood_scores = np.arange(50.0), np.arange(-20.0, 20.0)
    before = np.random.get_state()[1].copy()
    first = metric(id_scores, ood_scores)
    assert metric(torch.from_numpy(id_scores).float(), ood_scores.tolist()) == first
    assert all(type(number) is float for number in first)
    assert np.array_equal(np.random.get_state()[1], before)


def literal_bootstrap(statistic, id_scores, ood_scores, resamples, seed=7):
    generator = np.random.default_rng(seed)
    draws = [
        statistic(generator.choice(id_scores, len(id_scores)), generator.choice(ood_scores, len(ood_scores)))
        for _ in range(resamples)
    ]
    return np.quantile(draws, [0.025, 0.975])


def test_intervals_are_those_of_a_literal_bootstrap():
    generator = np.random.default_rng(2)
    id_scores, ood_scores = generator.normal(1.2, 1, 300), generator.normal(size=200)

    def precision_id(a, b):
        return average_precision_score(*as_labelled_ranks(a, b))

    def precision_ood(a, b):
        labels, ranks = as_labelled_ranks(a, b)
        return average_precision_score(1 - labels, -ranks)

    def accepted(a, b):
        return np.mean(b >= np.sort(a)[15])  # 285 of 300 are at least this high

    for metric, statistic in ((aupr_id, precision_id), (aupr_ood, precision_ood), (fpr95, accepted)):
        estimate = metric(id_scores, ood_scores)
        width = estimate.high - estimate.low
        expected = literal_bootstrap(statistic, id_scores, ood_scores, 600)
        assert 0.02 < width < 0.3
        assert [estimate.low, estimate.high] == pytest.approx(expected, abs=0.15 * width)


def test_the_resampled_threshold_has_the_law_of_an_order_statistic():
    """With OOD inputs without end, evenly spread over the ID ranks, only the threshold of the resamples varies."""
    ranks = np.arange(100)
    law = binom.sf(5, 100, (ranks + 1) / 100)  # the 6th smallest of 100 draws is at most this rank
    lowest, highest = np.searchsorted(law, [0.025, 0.975])
    estimate = fpr95(ranks, np.arange(0, 100, 0.001))
    assert estimate.value == 0.95
    assert [1 - estimate.high, 1 - estimate.low] == pytest.approx([lowest / 100, highest / 100], abs=0.005)


def test_fpr95_intervals_cover_the_truth_where_a_resample_would_see_no_ood():
    """At a true rate of 0.2% most sets of 300 have no accepted OOD input, and the plain bootstrap says [0, 0]."""
    generator = np.random.default_rng(4)
    covered = []
    for _ in range(300):
        id_scores = generator.uniform(size=300)
        ood_scores = np.where(generator.uniform(size=300) < 0.002, 1.0, -1.0)
        estimate = fpr95(id_scores, ood_scores)
        covered.append(estimate.low <= 0.002 <= estimate.high)
    assert np.mean(covered) >= 0.93


def test_many_scores_are_resampled_in_pieces_to_the_same_end():
    generator = np.random.default_rng(5)
    id_scores, ood_scores = generator.normal(1, 1, 3000), generator.normal(size=3000)
    labels, ranks = as_labelled_ranks(id_scores, ood_scores)
    estimate = aupr_id(id_scores, ood_scores)
    assert estimate.value == pytest.approx(average_precision_score(labels, ranks), abs=1e-12)
    assert 0.01 < estimate.high - estimate.low < 0.06


@pytest.mark.parametrize("metric", METRICS)
def test_scores_that_cannot_be_measured_are_refused(metric):
    for id_scores, ood_scores, facts in (
        ([1.0, math.nan], [0.0], "ID scores hold 1 NaN of 2, the first at index 1"),
        ([1.0], [0.0, 0.0, math.nan], "OOD scores hold 1 NaN of 3, the first at index 2"),
        ([], [0.0], "at least one ID score"),
        ([1.0], [], "at least one OOD score"),
    ):
        with pytest.raises(InputError, match=facts):
            metric(id_scores, ood_scores)


@pytest.mark.parametrize("tpr", [0.0, 1.0, 95])
def test_a_tpr_outside_of_0_to_1_is_refused(tpr):
    with pytest.raises(InputError, match=r"tpr must be a number strictly between 0 and 1.*got"):
        fpr_at_tpr([1.0], [0.0], tpr)
