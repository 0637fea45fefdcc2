"""The idealised kernel of appendix B.3: its definition, and what it says of a training that diverges."""

import math

import numpy as np
import pytest
import torch
from builders import correlated_sequences

import apood
from apood.experiments.paper.idealised import IdealisedKernel
from apood.support.errors import DivergedWarning

pytestmark = pytest.mark.usefixtures("one_thread")
TRAIN, TEST = correlated_sequences(40, 4), correlated_sequences(12, 4, seed=1)


@pytest.mark.parametrize("beta", [None, 0.0, 0.3])
def test_the_score_is_its_definition(beta):
    detector = IdealisedKernel(heads=3, beta=beta, steps=5).fit(TRAIN)
    factor = 1 / math.sqrt(4) if beta is None else beta

    def pool(sequence):
        similarities = sequence.double() @ detector.weights_.double().T
        return (torch.exp(factor * similarities) * similarities).mean(0)

    centre = torch.stack([pool(sequence) for sequence in TRAIN]).mean(0)
    expected = [-float((pool(sequence) - centre).square().sum()) for sequence in TEST]
    np.testing.assert_allclose(detector.score_samples(TEST), expected, rtol=1e-4, atol=1e-5)


def test_training_lowers_the_loss_from_the_same_start():
    def compute_loss(detector):
        distance = -float(detector.score_samples(TRAIN).mean())
        return distance - float(detector.weights_.square().sum(1).log().sum())

    short, long = (compute_loss(IdealisedKernel(heads=3, steps=steps).fit(TRAIN)) for steps in (1, 200))
    assert long < short


def test_a_training_that_diverges_says_so_at_the_call_of_fit():
    with pytest.warns(DivergedWarning, match="Training stopped at step 0: its loss is inf") as caught:
        IdealisedKernel(beta=50.0, steps=2).fit(apood.TokenBatch(1e10 * TRAIN.values.abs(), TRAIN.offsets))
    assert [warning.filename for warning in caught] == [__file__]
