"""Relative Mahalanobis distance, against scikit-learn."""

import numpy as np
import pytest
import torch
from builders import correlated_sequences
from sklearn.covariance import EmpiricalCovariance, ShrunkCovariance
from sklearn.preprocessing import normalize

from apood.detectors.mahalanobis import Mahalanobis
from apood.detectors.relative_mahalanobis import RelativeMahalanobis
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch

DIM = 8
NORMALIZATIONS = ["none", "tokens", "pooled"]


def means(batch, how):
    """Return the mean-pooled sequences by numpy."""
    sequences = [normalize(z) if how == "tokens" else z for z in (z.double().numpy() for z in batch)]
    pooled = np.stack([z.mean(0) for z in sequences])
    return normalize(pooled) if how == "pooled" else pooled


@pytest.fixture
def data(train, aux, test_set):
    return [batch.to(dtype=torch.float64) for batch in (train, aux, test_set)]


@pytest.mark.parametrize("how", NORMALIZATIONS)
@pytest.mark.parametrize("shrinkage", [0.0, 0.1, 1.0])
def test_it_equals_scikit_learn(data, how, shrinkage):
    train, aux, test = (means(batch, how) for batch in data)
    gaussians = [
        ShrunkCovariance(shrinkage=shrinkage).fit(x) if shrinkage else EmpiricalCovariance().fit(x)
        for x in (train, aux)
    ]
    inside, outside = (gaussian.mahalanobis(test) for gaussian in gaussians)
    scores = RelativeMahalanobis(normalize=how, shrinkage=shrinkage).fit(data[0], aux=data[1]).score_samples(data[2])
    np.testing.assert_allclose(scores, outside - inside, rtol=1e-6, atol=1e-6)


def test_it_is_the_difference_of_two_mahalanobis_distances(train, aux, test_set):
    inside, outside = (Mahalanobis().fit(corpus).score_samples(test_set) for corpus in (train, aux))
    scores = RelativeMahalanobis(shrinkage=0).fit(train, aux=aux).score_samples(test_set)
    np.testing.assert_allclose(scores, inside - outside, rtol=1e-6, atol=1e-6)


def test_what_both_corpora_share_cancels(train):
    scores = RelativeMahalanobis(shrinkage=0).fit(train, aux=train).score_samples(train)
    np.testing.assert_allclose(scores, 0, atol=1e-9)


@pytest.mark.parametrize(("role", "numbers"), [("ID", (8, 20)), ("AUX", (20, 8)), ("AUX", (20, 2))])
def test_too_few_sequences_are_refused_without_shrinkage(train, aux, role, numbers):
    few = train[: numbers[0]], aux[: numbers[1]]
    with pytest.raises(InputError, match=rf"more than 8 {role} sequences, got {min(numbers)}; .*shrinkage"):
        RelativeMahalanobis(shrinkage=0).fit(few[0], aux=few[1])
    scores = RelativeMahalanobis().fit(few[0], aux=few[1]).score_samples(train)
    assert np.isfinite(scores).all()
    RelativeMahalanobis(shrinkage=0).fit(train[:9], aux=aux[:9])


def test_too_few_are_refused_before_the_corpus_is_read(train, aux, monkeypatch):
    from apood.detectors import relative_mahalanobis

    monkeypatch.setattr(relative_mahalanobis, "compute_moments", lambda *_: pytest.fail("read for nothing"))
    with pytest.raises(InputError, match="more than 8 AUX sequences, got 3"):
        RelativeMahalanobis(shrinkage=0).fit(train, aux=aux[:3])


def test_a_single_sequence_has_no_covariance(train, aux):
    for few, role in (((train, aux[:1]), "AUX"), ((train[:1], aux), "ID")):
        with pytest.raises(InputError, match=f"at least 2 {role} sequences, got 1"):
            RelativeMahalanobis(shrinkage=0.5).fit(few[0], aux=few[1])


def test_a_hyperplane_is_refused_without_shrinkage():
    """Every token sums to zero, as after a layer norm without weights."""
    train, aux = correlated_sequences(60, DIM), correlated_sequences(30, DIM, seed=1, shift=4.0)
    flat = [
        TokenBatch(b.values - b.values.mean(1, keepdim=True), b.offsets).to(dtype=torch.float64) for b in (train, aux)
    ]
    flat = [TokenBatch(b.values - b.values.mean(1, keepdim=True), b.offsets) for b in flat]
    for corpora, role in ((flat, "ID"), ((train, flat[1]), "AUX")):
        with pytest.raises(InputError, match=rf"{role} sequences has no inverse.*shrinkage"):
            RelativeMahalanobis(shrinkage=0).fit(corpora[0], aux=corpora[1])
    for detector in (RelativeMahalanobis(shrinkage=0.01), RelativeMahalanobis()):
        assert np.isfinite(detector.fit(flat[0], aux=flat[1]).score_samples(flat[0])).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_rounding_does_not_hide_a_hyperplane(dtype):
    """Tokens after a layer norm are recognised in a store of any dtype."""
    corpora = []
    for batch in (correlated_sequences(200, 32), correlated_sequences(100, 32, seed=1, shift=4.0)):
        normed = torch.nn.functional.layer_norm(batch.values, (32,))
        corpora.append(TokenBatch(normed.to(dtype), batch.offsets))
    with pytest.raises(InputError, match=rf"has no inverse.* rounding of {str(dtype)[6:]} "):
        RelativeMahalanobis(shrinkage=0).fit(corpora[0], aux=corpora[1])
    RelativeMahalanobis(shrinkage=0.01).fit(corpora[0], aux=corpora[1])


def test_shrinkage_as_advised_is_enough_where_one_direction_outweighs_all_others(train, aux):
    stretch = torch.tensor([1000.0] + [1.0] * (DIM - 1))
    corpora = [TokenBatch((b.values * stretch).to(torch.bfloat16), b.offsets) for b in (train, aux)]
    with pytest.raises(InputError, match=r"has no inverse, .* rounding of bfloat16 "):
        RelativeMahalanobis(shrinkage=0).fit(corpora[0], aux=corpora[1])
    RelativeMahalanobis(shrinkage=1e-4).fit(corpora[0], aux=corpora[1])


@pytest.mark.parametrize("shrinkage", [-0.1, 1.5])
def test_a_bad_shrinkage_is_refused(train, aux, shrinkage):
    with pytest.raises(InputError, match=rf"shrinkage must .*>= 0 and <= 1, got {shrinkage}"):
        RelativeMahalanobis(shrinkage=shrinkage).fit(train, aux=aux)


def test_unknown_normalizations_are_refused(train, aux):
    with pytest.raises(InputError, match=r"normalize must be one of .*'both'"):
        RelativeMahalanobis(normalize="both").fit(train, aux=aux)


def test_the_settings_worth_trying_work_with_few_outliers(train, aux):
    for settings in RelativeMahalanobis().hyperparameter_space(DIM, supervised=True):
        RelativeMahalanobis(**settings).fit(train, aux=aux[:2])
