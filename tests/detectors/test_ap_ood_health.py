"""Warnings about a training that failed, and none about one that succeeded."""

import warnings

import pytest
import torch
from builders import correlated_sequences, random_queries

from apood.detectors.ap_ood import detector as ap_ood
from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.ap_ood.recipe import resolve
from apood.detectors.ap_ood.training import Outliers, find_failures
from apood.fitting.optimise import Checkpoint, Outcome
from apood.support.errors import FitWarning
from apood.tokens.batch import TokenBatch

DIM = 8
HEALTHY = {
    "weights": random_queries(8, 2, DIM),
    "variances": torch.linspace(0.5, 2, 8),
    "distance": 1.0,
    "sequences": 100,
    "outcome": Outcome(1.0, 1.0, None),
    "outliers": None,
}


def messages(**changes):
    found = find_failures(**HEALTHY | changes)
    assert all(isinstance(one, FitWarning) for one in found)
    return [str(one) for one in found]


def aux_at(distance, weight=1.0, reduction="sum", **settings):
    """AUX sequences at that distance, of a fit by the paper's recipe."""
    return {"outliers": Outliers(distance, resolve("paper", aux_weight=weight, head_reduction=reduction, **settings))}


def test_a_healthy_fit_is_silent(train):
    assert messages() == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        APOOD(steps=40).fit(train)


def heads_with_cosine(cosine, count=8):
    """Orthogonal heads, but for the last one, whose cosine with the first is `cosine`."""
    flat = torch.eye(count, 2 * DIM)
    flat[-1] = 0
    flat[-1, 0], flat[-1, -1] = cosine, (1 - cosine**2) ** 0.5
    return flat.view(count, 2, DIM)


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"outcome": Outcome(float("nan"), 1.0, 40)}, ["step 40", "loss was no longer finite"]),
        ({"sequences": 7}, ["fewer ID sequences (7) than token dimensions (8)"]),
        ({"distance": 4.1}, ["not settled", "4.1", "more steps"]),
        ({"weights": torch.cat([HEALTHY["weights"][:6], -2 * HEALTHY["weights"][:2]])}, ["25% of the 8", "collapsed"]),
        ({"weights": heads_with_cosine(-0.991)}, ["collapsed"]),
        ({"weights": heads_with_cosine(1.0, count=9)}, ["11% of the 9", "collapsed"]),
        ({"variances": torch.tensor([0.0, 9e-7, *[1.0] * 6])}, ["2 of the 8 heads are dead"]),
        ({"variances": torch.zeros(8)}, ["8 of the 8 heads are dead"]),
        (aux_at(14.1), ["taught nothing", "8 heads is at least 14.1", "beyond about 14", "use start='scaled', "]),
        (aux_at(23.3, 1e4), ["taught nothing", "beyond about 23", "recipe='reference' or recipe='robust'"]),
        (aux_at(14.1, start="scaled"), ["taught nothing", "use normalize='tokens'."]),
        (aux_at(14.1, start="scaled", unit_tokens=True), ["taught nothing", "use more steps or a smaller beta."]),
        # their mean over heads would be too large as well
        (aux_at(400.0), ["differ from ID anyway", "is at least 50", "that of ID 1"]),
        (aux_at(50.0, reduction="mean"), ["differ from ID anyway", "is at least 50"]),
        (aux_at(float("inf")), ["differ from ID anyway"]),
    ],
)
def test_each_failure_has_its_message(changes, facts):
    (message,) = messages(**changes)
    assert all(fact in message for fact in facts), message


@pytest.mark.parametrize(
    "changes",
    [
        {"sequences": DIM},
        {"distance": 3.9},
        {"weights": heads_with_cosine(-0.989)},
        {"weights": heads_with_cosine(1.0, count=11)},  # a share of 9%
        {"variances": torch.tensor([1.1e-6, *[1.0] * 7])},
        aux_at(13.9, 1e-3),
        aux_at(13.9, reduction="mean"),
        aux_at(23.1, 1e4),  # a large weight makes up for the distance
    ],
)
def test_what_is_only_near_a_failure_is_silent(changes):
    assert messages(**changes) == []


@pytest.mark.parametrize(
    ("reduction", "sentence"),
    [("sum", "summed over 8 heads is at least 400 "), ("mean", "per head is at least 400 ")],
)
def test_aux_do_not_differ_from_id_for_a_training_that_has_not_settled(reduction, sentence):
    unsettled, unfelt = messages(distance=400.0, **aux_at(400.0, reduction=reduction))
    assert "not settled" in unsettled
    assert "taught nothing:" in unfelt and sentence in unfelt


def test_several_failures_are_all_named():
    assert len(messages(sequences=3, distance=50.0, variances=torch.zeros(8))) == 3


# Real fits.


@pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")
def test_too_few_sequences(train):
    with pytest.warns(FitWarning, match=r"fewer ID sequences \(6\) than token dimensions \(8\)") as caught:
        APOOD(steps=5).fit(train[:6])
    assert all(warning.filename == __file__ for warning in caught), "it points at the call of fit"


@pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")
def test_a_loss_that_is_not_finite_keeps_usable_weights(train):
    with pytest.warns(FitWarning, match=r"step 10 .*no longer finite"):
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
    APOOD(**arguments, regularizer="logdet").fit(flat)  # keeps them apart; a warning would be an error here


@pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")
def test_heads_that_are_dead(train):
    """A head sees no difference between sequences if all its attention goes to a token that each of them has."""
    anchor = torch.full((1, DIM), 30.0)
    anchored = TokenBatch.from_sequences([torch.cat([anchor, z]) for z in train])
    with pytest.warns(FitWarning, match="of the 8 heads are dead"):
        APOOD(recipe="paper", beta=100.0, steps=1).fit(anchored)


# AUX sequences.

MANY_HEADS = {"recipe": "paper", "heads": 64, "steps": 120}  # the sum of their d² is large for every sequence


def fit_with_aux(train, aux, **arguments):
    """Return the detector, and the warnings of its fit about AUX sequences."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        detector = APOOD(**arguments).fit(train, aux=aux)
    about = [warning for warning in caught if "AUX" in str(warning.message)]
    assert all(issubclass(w.category, FitWarning) and w.filename == __file__ for w in about), "it points at the fit"
    return detector, [str(warning.message) for warning in about]


def shifted(shift):
    return correlated_sequences(30, DIM, seed=3, shift=shift)


@pytest.mark.parametrize("shift", [1.0, 4.0])
def test_aux_sequences_that_taught_nothing(train, shift):
    weak, strong = (fit_with_aux(train, shifted(shift), aux_weight=weight, **MANY_HEADS) for weight in (0.1, 10.0))
    for _, (message,) in (weak, strong):
        assert "taught nothing:" in message and "summed over 64 heads" in message
    assert torch.equal(weak[0].queries_, strong[0].queries_), "whatever they weigh"


@pytest.mark.parametrize(
    "remedy", [{"start": "scaled"}, {"recipe": "reference"}, {"recipe": "robust", "heads": "auto"}], ids=str
)
def test_the_remedies_help(train, remedy):
    arguments = MANY_HEADS | remedy
    (weak, *said), (strong, *more) = (
        fit_with_aux(train, shifted(1.0), aux_weight=weight, **arguments) for weight in (0.1, 10.0)
    )
    assert said == more == [[]]
    assert float((weak.queries_ - strong.queries_).norm() / strong.queries_.norm()) > 0.01


@pytest.mark.parametrize(
    ("shift", "arguments"),
    [
        (1.0, {"recipe": "paper", "heads": 2, "steps": 120}),
        (4.0, {"steps": 40}),
        (4.0, {"aux_weight": 0.0, **MANY_HEADS}),
        (None, MANY_HEADS),
    ],
    ids=["few heads", "robust", "a weight of 0", "none"],
)
def test_no_warning_about_aux_sequences_that_taught_or_should_not(train, shift, arguments):
    _, said = fit_with_aux(train, None if shift is None else shifted(shift), **arguments)
    assert said == []


def test_aux_sequences_that_differ_from_id_anyway(train):
    _, (message,) = fit_with_aux(train, shifted(100.0), steps=40, normalize="none")
    assert "differ from ID anyway" in message


@pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")
def test_a_fit_that_was_interrupted_says_the_same(train, tmp_path, monkeypatch):
    class Interrupted(ap_ood.Training):
        def __call__(self, step):
            if step == 100:
                raise KeyboardInterrupt
            return super().__call__(step)

    checkpoint, aux = Checkpoint(tmp_path / "checkpoint", every_seconds=0), shifted(1.0)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ap_ood, "Training", Interrupted)
        APOOD(**MANY_HEADS).fit(train, aux=aux, checkpoint=checkpoint)
    with pytest.warns(FitWarning) as caught:
        found = APOOD(**MANY_HEADS).fit(train, aux=aux, checkpoint=checkpoint)
    expected, (message,) = fit_with_aux(train, aux, **MANY_HEADS)
    assert torch.equal(found.queries_, expected.queries_) and message in {str(w.message) for w in caught}
