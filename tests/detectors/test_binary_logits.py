"""Binary logits, against other solvers of the same regression."""

import warnings

import numpy as np
import pytest
import torch
from builders import correlated_sequences
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler, normalize

from apood.detectors import binary_logits
from apood.detectors.binary_logits import BinaryLogits
from apood.evaluation.metrics import auroc
from apood.support.errors import FitWarning, InputError
from apood.tokens.batch import TokenBatch

DIM = 8


def means(batch, how="none"):
    """Return the mean-pooled sequences by numpy."""
    sequences = [normalize(z) if how == "tokens" else z for z in (z.double().numpy() for z in batch)]
    pooled = np.stack([z.mean(0) for z in sequences])
    return normalize(pooled) if how == "pooled" else pooled


@pytest.fixture
def near():
    """Return outliers that overlap with the ID sequences."""
    return correlated_sequences(30, DIM, seed=3, shift=0.7, dtype=torch.float64)


@pytest.mark.parametrize(
    ("how", "penalty", "count"), [("none", 0.001, 30), ("none", 1.0, 1), ("tokens", 0.01, 8), ("pooled", 0.01, 30)]
)
def test_it_equals_another_solver(train, test_set, near, how, penalty, count):
    train, test = (batch.to(dtype=torch.float64) for batch in (train, test_set))
    detector = BinaryLogits(normalize=how, penalty=penalty).fit(train, aux=near[:count])
    scaler = StandardScaler().fit(means(train, how))
    x = scaler.transform(np.concatenate([means(train, how), means(near[:count], how)]))
    labels = np.arange(len(x)) < len(train)
    shares = np.where(labels, 0.5 / len(train), 0.5 / count)
    reference = LogisticRegression(C=1 / penalty, solver="newton-cholesky", tol=1e-14).fit(x, labels, shares)
    expected = reference.decision_function(scaler.transform(means(test, how)))
    np.testing.assert_allclose(detector.score_samples(test), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


def test_it_minimises_what_the_docstring_says(train, test_set, near):
    scaler = StandardScaler().fit(means(train))
    inside, outside = (scaler.transform(means(batch)) for batch in (train, near))

    def objective(parameters):
        weight, bias = parameters[:-1], parameters[-1]
        loss = np.logaddexp(0, -inside @ weight - bias).mean() + np.logaddexp(0, outside @ weight + bias).mean()
        return 0.5 * loss + 0.05 / 2 * weight @ weight

    found = minimize(objective, np.zeros(DIM + 1), tol=1e-12).x
    scores = BinaryLogits(penalty=0.05).fit(train, aux=near).score_samples(test_set)
    np.testing.assert_allclose(scores, scaler.transform(means(test_set)) @ found[:-1] + found[-1], rtol=0, atol=1e-4)


def test_repeated_outliers_weigh_no_more(train, near, test_set):
    once = BinaryLogits().fit(train, aux=near).score_samples(test_set)
    often = BinaryLogits().fit(train, aux=TokenBatch.concatenate([near] * 20)).score_samples(test_set)
    np.testing.assert_allclose(often, once, rtol=1e-6, atol=1e-6)
    twice = BinaryLogits().fit(TokenBatch.concatenate([train, train]), aux=near).score_samples(test_set)
    np.testing.assert_allclose(twice, once, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 500])
def test_outliers_score_lower_however_many_there_are(train, count):
    detector = BinaryLogits().fit(train, aux=correlated_sequences(count, DIM, seed=5, shift=4.0))
    inside, outside = (detector.score_samples(correlated_sequences(60, DIM, seed=6, shift=s)) for s in (0.0, 4.0))
    assert auroc(inside, outside).value > (0.9 if count > 1 else 0.6)
    if count > 1:
        assert np.median(inside) > 0 > np.median(outside)


def test_one_sequence_against_more_dimensions_than_sequences():
    train, aux = correlated_sequences(20, 64), correlated_sequences(1, 64, seed=1, shift=10.0)
    detector = BinaryLogits().fit(train, aux=aux)
    assert detector.score_samples(aux).item() < detector.score_samples(train).min()


@pytest.mark.parametrize("factor", [1e-3, 1e4])
def test_scale_and_origin_of_the_tokens_do_not_matter(train, near, test_set, factor):
    def moved(batch):
        return TokenBatch(factor * (batch.values.double() + 5), batch.offsets)

    here = BinaryLogits().fit(train, aux=near).score_samples(test_set)
    there = BinaryLogits().fit(moved(train), aux=moved(near)).score_samples(moved(test_set))
    np.testing.assert_allclose(there, here, rtol=1e-5, atol=1e-5)


def test_what_is_learnt_is_two_tensors(train, near):
    detector = BinaryLogits().fit(train, aux=near)
    assert detector.weight_.shape == (DIM,) and detector.bias_.shape == () and detector.bias_.dtype == torch.float64
    assert not any(isinstance(value, LogisticRegression) for value in vars(detector).values())


def test_a_regression_that_does_not_converge_warns(train, near, monkeypatch):
    monkeypatch.setattr(binary_logits, "_MOST_ITERATIONS", 2)
    with pytest.warns(FitWarning, match=r"after 2 iterations.*larger penalty") as caught:
        BinaryLogits().fit(train, aux=near)
    assert [warning.filename for warning in caught] == [__file__], "it points at the call of fit"


def test_absurd_outliers_are_reported(train, near):
    absurd = near.to(dtype=torch.float32)
    absurd.values[0] = 9e14
    tiny = TokenBatch(train.values.double() * 1e-22, train.offsets)
    with pytest.warns(FitWarning, match="remove AUX sequences"):
        BinaryLogits().fit(tiny, aux=absurd)


def test_outliers_that_overflow_are_named(train, near):
    tiny = TokenBatch(train.values.double() * 1e-27, train.offsets)
    absurd = near.to(dtype=torch.float32)
    for sequence in (7, 20):
        absurd.values[int(absurd.offsets[sequence])] = 9e14
    sentence = r"^Sequence 7 of the AUX data .*float32.*remove"
    with pytest.raises(InputError, match=sentence):
        BinaryLogits().fit(tiny, aux=absurd)


@pytest.mark.parametrize("penalty", [1e-8, 1e3])
def test_extreme_penalties_converge(train, near, penalty):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for aux in (near, near[:1], correlated_sequences(10, DIM, seed=1, shift=100.0)):
            assert np.isfinite(BinaryLogits(penalty=penalty).fit(train, aux=aux).score_samples(train)).all()


def test_bad_arguments_are_refused(train, near):
    for penalty in (0, -1.0, float("inf"), "much"):
        with pytest.raises(InputError, match=r"penalty must .*> 0, got "):
            BinaryLogits(penalty=penalty).fit(train, aux=near)
    with pytest.raises(InputError, match=r"normalize must be one of .*'both'"):
        BinaryLogits(normalize="both").fit(train, aux=near)


def test_the_settings_worth_trying_are_allowed():
    for settings in BinaryLogits().hyperparameter_space(DIM, supervised=True):
        BinaryLogits(**settings).check_parameters()
