"""TRUSTED: its depth, and what does not change it."""

import numpy as np
import pytest
import torch
from builders import observed_sequences

from apood.detectors.trusted import Trusted
from apood.support.errors import InputError

DIM = 8


@pytest.fixture(scope="module")
def train():
    return observed_sequences(80, DIM)


def test_the_depth_is_that_of_its_definition(train):
    outside = observed_sequences(20, DIM, seed=1, shift=0.7)
    detector = Trusted(projections=50, seed=3).fit(train)
    directions = detector.directions_.double().numpy()
    assert np.linalg.norm(directions, axis=1) == pytest.approx(1, abs=1e-6)
    known, own = (
        np.stack([s.double().mean(0).numpy() for s in sequences]) @ directions.T for sequences in (train, outside)
    )
    below = (own[:, None] > known[None]).mean(1)
    assert detector.score_samples(outside) == pytest.approx(np.minimum(below, 1 - below).mean(1), abs=1e-9)


def test_the_centre_is_deepest_and_far_points_have_no_depth():
    dice = np.random.default_rng(0)
    train = [torch.tensor(dice.normal(size=(1, DIM))) for _ in range(500)]
    points = [torch.full((1, DIM), x, dtype=torch.float64) for x in (0.0, 1.0, 100.0)]
    scores = Trusted().fit(train).score_samples(points)
    assert scores[0] > 0.45 and 0.05 < scores[1] < scores[0] and scores[2] < 0.01


def test_equal_projections_count_half_on_each_side():
    same = [torch.ones(1, 2)] * 4
    assert Trusted(projections=9).fit(same).score_samples(same) == pytest.approx(0.5)


def test_shifting_and_scaling_all_tokens_changes_nothing(train):
    def change(sequences):
        return [3 * sequence.double() + 5 for sequence in sequences]

    test = observed_sequences(20, DIM, seed=1)
    before = Trusted(projections=100).fit([s.double() for s in train]).score_samples([s.double() for s in test])
    after = Trusted(projections=100).fit(change(train)).score_samples(change(test))
    assert after == pytest.approx(before, abs=1e-3)


@pytest.mark.parametrize("parameters", [{"projections": 0}, {"normalize": "both"}, {"seed": -1}])
def test_bad_parameters_are_refused(train, parameters):
    with pytest.raises(InputError, match=next(iter(parameters))):
        Trusted(**parameters).fit(train)
