"""Calibrations from reviewed traffic keep their promise, and refuse samples that were chosen by score."""

import math

import numpy as np
import pytest

from apood.decisions.conformal import Calibration, accepted_interval
from apood.decisions.review import Review
from apood.support.errors import InputError

OLD = Calibration.from_scores(np.random.default_rng(0).normal(size=200), 0.95)


def review(scores, is_id=None, probabilities=None):
    count = len(scores)
    return Review.of(
        scores,
        np.ones(count, dtype=bool) if is_id is None else np.array(is_id),
        np.ones(count) if probabilities is None else np.array(probabilities),
    )


def test_only_id_inputs_with_a_score_count():
    found = review([*range(19), -100.0, -math.inf], [True] * 19 + [False, True])
    assert found.calibrate(0.95).scores.tolist() == list(range(19))
    assert (found.unscored, found.dropped) == (1, 0)


@pytest.mark.parametrize("weighted", [True, False])
def test_the_promise_needs_the_probabilities(weighted):
    """All refused inputs are reviewed, and a fifth of the others. The threshold is right only if the rows say so."""
    accepted = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        scores = rng.normal(size=600)
        probabilities = np.where(OLD.accepts(scores), 0.2, 1.0)
        chosen = rng.random(600) < probabilities
        new = review(scores[chosen], probabilities=probabilities[chosen] if weighted else None).calibrate(0.9)
        accepted.append(new.accepts(rng.normal(size=500)).mean())
    if weighted:
        assert 0.9 - 3 * np.std(accepted) / math.sqrt(300) <= np.mean(accepted) < 0.92
    else:
        assert np.mean(accepted) > 0.95


def test_equal_probabilities_drop_nothing():
    assert review(range(50), probabilities=[0.3] * 50).dropped == 0
    found = review(range(3000), probabilities=[1.0] * 2000 + [0.25] * 1000)
    assert 1400 < found.dropped < 1600 and np.all(found.scores[-1000:] == np.arange(2000, 3000))


@pytest.mark.parametrize(
    ("scores", "where"),
    [
        (np.full(5, -5.0), "All 5 reviewed scores are below the threshold of the detector"),
        (np.linspace(-1.2, 3, 300), "All 300 reviewed scores are above the threshold of the detector"),
        (np.linspace(-3, -0.2, 50), "All 50 reviewed scores are below the median of its calibration scores"),
        (np.linspace(0.2, 3, 20), "All 20 reviewed scores are above the median of its calibration scores"),
    ],
)
def test_samples_that_were_chosen_by_score_are_refused(scores, where):
    with pytest.raises(InputError, match=where):
        review(scores).refuse_selected(OLD)


def test_random_samples_are_not_refused():
    refused = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        before = Calibration.from_scores(rng.normal(size=100), 0.95)
        try:
            review(rng.normal(size=40)).refuse_selected(before)
        except InputError:
            refused += 1
    assert refused <= 4
    review([]).refuse_selected(OLD)
    review([-5.0]).refuse_selected(Calibration.from_scores(range(19), 0.5))


def test_the_share_of_one_calibration_is_in_its_interval():
    inside = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        calibration = Calibration.from_scores(rng.normal(size=300), 0.9)
        low, high = accepted_interval(calibration)
        inside.append(low <= calibration.accepts(rng.normal(size=20_000)).mean() <= high)
    assert 0.95 - 3 * math.sqrt(0.95 * 0.05 / 200) <= np.mean(inside) < 1
