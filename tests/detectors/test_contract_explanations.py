"""The contract of explanations: what every method that explains its scores promises, and what the others say."""

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.binary_logits import BinaryLogits
from apood.detectors.contract.base import Detector
from apood.detectors.fusion import Fusion
from apood.detectors.knn import KNN, MahalanobisKNN
from apood.detectors.mahalanobis import Mahalanobis
from apood.detectors.perplexity import Perplexity
from apood.detectors.relative_mahalanobis import RelativeMahalanobis
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch

pytestmark = pytest.mark.filterwarnings("ignore:Training has not settled")
DIM = 8
SETTINGS = [
    APOOD(steps=5),
    APOOD(steps=5, score="sum", similarity="euclidean"),
    APOOD(steps=5, score="min"),
    APOOD(recipe="reference", beta=0.3, queries=2, steps=5),
    *(
        method(normalize=how)
        for method in (Mahalanobis, KNN, MahalanobisKNN, RelativeMahalanobis, BinaryLogits)
        for how in ("none", "tokens", "pooled")
    ),
    KNN(k=3, average=True),
    MahalanobisKNN(k=3, average=True),
]


def sums(explanation):
    return np.array([float(part.sum()) for part in explanation.contributions])


def get_best_score(detector):
    """Return the score at a distance of 0."""
    return float(detector._best_score()) if isinstance(detector, APOOD) else 0.0


def test_a_method_explains_or_says_that_it_does_not(fitted, test_set):
    if not fitted.explains:
        with pytest.raises(InputError, match=rf"The score of {fitted.name} is not made of parts .* single tokens"):
            fitted.explain(test_set)
        return
    explanation = fitted.explain(test_set)
    assert type(fitted)._explain is not Detector._explain or explanation.members
    assert torch.equal(explanation.contributions.offsets, test_set.offsets)
    np.testing.assert_allclose(sums(explanation), explanation.totals, rtol=1e-9, atol=1e-9)
    assert torch.equal(fitted.token_contributions(test_set).values, explanation.contributions.values)
    assert ((explanation.explained >= 0) & (explanation.explained <= 1)).all()


@pytest.mark.parametrize("detector", SETTINGS, ids=repr)
def test_contributions_sum_to_the_distance_behind_the_score(detector, fit, train, test_set):
    """In float64: the score of AP-OOD is computed in the precision of the tokens."""
    fitted = fit(copy.deepcopy(detector), train)
    exact = test_set.to(dtype=torch.float64)
    explanation = fitted.explain(exact)
    distances = get_best_score(fitted) - fitted.score_samples(exact)
    np.testing.assert_allclose(sums(explanation), distances, rtol=1e-5, atol=1e-12)
    if explanation.heads is not None:
        assert explanation.heads.values.shape == (len(test_set.values), len(fitted.prototype_))
        torch.testing.assert_close(explanation.heads.values.sum(1), explanation.contributions.values)


@pytest.mark.parametrize("detector", SETTINGS, ids=repr)
def test_tokens_that_cancel_are_explained(detector, fit, train):
    """Their mean is 0 and has no direction."""
    fitted = fit(copy.deepcopy(detector), train)
    token = torch.linspace(1, 2, DIM, dtype=torch.float64)
    cancelled = TokenBatch.from_sequences([torch.stack([token, -token])])
    distances = get_best_score(fitted) - fitted.score_samples(cancelled)
    np.testing.assert_allclose(sums(fitted.explain(cancelled)), distances, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("detector", SETTINGS, ids=repr)
def test_explanations_do_not_depend_on_neighbours_in_a_batch(detector, fit, train, test_set):
    fitted = fit(copy.deepcopy(detector), train)
    whole, alone = fitted.explain(test_set), fitted.explain(test_set.select([5]))
    torch.testing.assert_close(whole.contributions.sequence(5), alone.contributions.sequence(0))


def test_heads_may_be_explained_block_by_block(train, test_set, monkeypatch):
    detector = APOOD(steps=5).fit(train)
    whole = detector.explain(test_set)
    monkeypatch.setattr("apood.detectors.ap_ood.detector._EXPLAINED", 1)
    torch.testing.assert_close(detector.explain(test_set).heads.values, whole.heads.values)


def test_empty_sequences_have_no_contributions(fitted):
    if fitted.explains and fitted.requires == {"tokens"}:
        batch = TokenBatch.from_lengths(torch.ones(2, DIM), [0, 2, 0])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            explanation = fitted.explain(batch)
        assert explanation.contributions.lengths.tolist() == [0, 2, 0] and len(explanation.totals) == 3


def test_what_cannot_be_scored_cannot_be_explained(new, fitted, test_set):
    with pytest.raises(NotFittedError):
        new().explain(test_set)
    if fitted.explains:
        broken = test_set.values.clone()
        broken[int(test_set.offsets[3])] = torch.nan
        with pytest.raises(InputError, match=r"Token 0 of sequence 3 in the data to .* is NaN"):
            fitted.explain(replace(test_set, values=broken))


def test_neighbours_are_named_by_their_place_in_the_training_set(train):
    for detector in (KNN(k=2), MahalanobisKNN(k=2)):
        explanation = detector.fit(train).explain(train.select([7, 30]))
        assert explanation.neighbours.shape == (2, 2)
        assert explanation.neighbours[:, 0].tolist() == [7, 30], "a training sequence is nearest to itself"


def test_a_summary_belongs_to_no_token():
    assert not KNN(view="summary").explains and KNN().explains


def test_the_shares_of_members_sum_to_minus_the_score(train, test_set):
    fusion = Fusion([APOOD(steps=5), KNN(), Mahalanobis(), Fusion([KNN(2), APOOD(steps=5)])]).fit(train)
    explanation = fusion.explain(test_set)
    shares = torch.stack([member.share for member in explanation.members])
    np.testing.assert_allclose(-shares.sum(0), fusion.score_samples(test_set), rtol=1e-9)
    np.testing.assert_allclose(sums(explanation), -fusion.score_samples(test_set), rtol=1e-5)
    assert (explanation.explained == 1).all()
    for member in explanation.members:
        own = np.array([float(part.sum()) for part in member.contributions])
        np.testing.assert_allclose(own, member.share, rtol=1e-5, atol=1e-9)
        for part, scaled in zip(member.parts.contributions, member.contributions, strict=True):
            assert torch.equal(part.argsort(stable=True), scaled.argsort(stable=True)), "the order of tokens is kept"


def test_a_member_that_explains_nothing_lowers_the_share_that_is_explained(train, test_set):

    fusion = Fusion([Mahalanobis(), Perplexity()]).fit(train)
    explanation = fusion.explain(test_set)
    known, unknown = explanation.members
    assert unknown.parts is None and unknown.contributions is None
    np.testing.assert_allclose(sums(explanation), known.share, rtol=1e-5, atol=1e-9)
    against = known.share.clamp_min(0) / (known.share.clamp_min(0) + unknown.share.clamp_min(0))
    torch.testing.assert_close(explanation.explained, against.nan_to_num(1.0))
    assert 0 < float(explanation.explained[-1]) < 1
