"""A training that went wrong says so, and one that went well says nothing."""

import warnings

import pytest
import torch
from builders import correlated_sequences, random_queries

from apood.detectors.ap_ood import APOOD
from apood.detectors.ap_ood_health import warn_of_failure
from apood.fitting.loop import Outcome
from apood.support.errors import FitWarning
from apood.tokens.batch import TokenBatch

DIM = 8
HEALTHY = {
    "weights": random_queries(8, 2, DIM),
    "variances": torch.linspace(0.5, 2, 8),
    "distance": 1.0,
    "sequences": 100,
    "outcome": Outcome(1.0, 1.0, None),
}


def messages(**changes):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_failure(**HEALTHY | changes)
    assert all(issubclass(w.category, FitWarning) for w in caught)
    return [str(w.message) for w in caught]


def test_a_healthy_fit_is_silent(train):
    assert messages() == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        APOOD(steps=40).fit(train)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"outcome": Outcome(float("nan"), 1.0, 40)},
            "Training broke off at step 40 because the loss was no longer finite, and the last finite weights",
        ),
        ({"sequences": 7}, "There are fewer ID sequences (7) than token dimensions (8)"),
        (
            {"distance": 99.5},
            "Training has not settled: the mean squared distance a head is 99.5 where about 1 is right",
        ),
        (
            {"weights": torch.cat([HEALTHY["weights"][:6], -2 * HEALTHY["weights"][:2]])},
            "25% of the 8 heads have collapsed onto another head and add nothing",
        ),
        ({"variances": torch.tensor([0.0, 1e-9, *[1.0] * 6])}, "2 of the 8 heads are dead"),
        ({"variances": torch.zeros(8)}, "8 of the 8 heads are dead"),
    ],
)
def test_each_failure_has_its_sentence(changes, sentence):
    (message,) = messages(**changes)
    assert message.startswith(sentence) and message.endswith(".")


@pytest.mark.parametrize(
    "changes",
    [
        {"sequences": DIM},
        {"distance": 3.9},
        {"weights": torch.cat([HEALTHY["weights"][:7], HEALTHY["weights"][:1] + 0.5 * HEALTHY["weights"][7:]])},
        {"variances": torch.tensor([1e-3, *[1.0] * 7])},
    ],
)
def test_what_is_only_near_a_failure_is_silent(changes):
    assert messages(**changes) == []


def test_several_failures_are_all_named():
    assert len(messages(sequences=3, distance=50.0, variances=torch.zeros(8))) == 3


# from real fits


@pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")
def test_too_few_sequences(train):
    with pytest.warns(FitWarning, match=r"fewer ID sequences \(6\) than token dimensions \(8\)") as caught:
        APOOD(steps=5).fit(train[:6])
    assert all(warning.filename == __file__ for warning in caught), "it points at the call of fit"


@pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")
def test_a_loss_that_is_not_finite_keeps_usable_weights(train):
    with pytest.warns(FitWarning, match=r"Training broke off at step 10 because the loss was no longer finite"):
        detector = APOOD(recipe="paper", learning_rate=1e25, steps=30).fit(train)
    assert torch.isfinite(detector.queries_).all()
    assert torch.isfinite(torch.from_numpy(detector.score_samples(train))).all()


def test_training_that_has_not_settled(train):
    with pytest.warns(FitWarning, match="Training has not settled"):
        APOOD(recipe="paper", steps=5).fit(train)


def test_heads_that_collapse():
    """The paper's regulariser lets every head drift to the direction of least variance."""
    flat = correlated_sequences(60, 3, lengths=(4, 4))
    flat = TokenBatch(flat.values * torch.tensor([2.0, 2.0, 0.3]), flat.offsets)
    arguments = {"recipe": "paper", "heads": 3, "beta": 0.0, "steps": 300, "learning_rate": 0.1}
    with pytest.warns(FitWarning, match=r"of the 3 heads have collapsed onto another head"):
        APOOD(**arguments).fit(flat)
    APOOD(**arguments, regularizer="logdet").fit(flat)  # keeps them apart, and no warning is an error here


@pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")
def test_heads_that_are_dead(train):
    """A head whose attention all goes to a token that every sequence has sees no difference between them."""
    anchor = torch.full((1, DIM), 30.0)
    anchored = TokenBatch.from_sequences([torch.cat([anchor, z]) for z in train])
    with pytest.warns(FitWarning, match=r"of the 8 heads are dead: their value is the same for every ID sequence"):
        APOOD(recipe="paper", beta=100.0, steps=1).fit(anchored)
