"""A fusion that learns from beginnings of sequences what is usual for short ones, and one of outputs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import correlated_sequences, random_tokens
from test_neighbours import with_summary

import apood
from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.fusion import Fusion, default_detector
from apood.detectors.knn import KNN, MahalanobisKNN
from apood.detectors.mahalanobis import Mahalanobis
from apood.evaluation.metrics import auroc
from apood.support.errors import DataWarning, InputError
from apood.tokens.source import Beginnings

LONG = (60, 200)


def members():
    return [Mahalanobis(normalize="none"), KNN(k=3, average=True), MahalanobisKNN(k=3, average=True)]


def cut(tokens, length):
    return Beginnings(tokens, torch.full((len(tokens),), length))


def noisy_sequences(count, seed, shift=0.0):
    """Return long sequences whose tokens have hardly anything in common, so that their mean depends on their length."""
    lengths = torch.randint(*LONG, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    tokens = random_tokens(lengths, 8, seed=seed)
    return replace(tokens, values=tokens.values + 1 + shift * torch.eye(8, dtype=torch.float64)[0])


@pytest.fixture(scope="module")
def long_sequences():
    return [noisy_sequences(count, seed) for seed, count in enumerate((400, 200, 300))]


def test_short_beginnings_are_accepted_only_if_they_were_learnt(long_sequences):
    train, held_out, new = long_sequences
    accepted = {}
    for beginnings in (False, True):
        detector = Fusion(members(), beginnings=beginnings).fit(train).calibrate(held_out)
        accepted[beginnings] = [float((detector.predict(cut(new, length)) == 1).mean()) for length in (4, 8, 16, 40)]
        assert (detector.predict(new) == 1).mean() > 0.9
    assert accepted[False][0] < 0.1 and min(accepted[True]) > 0.7


def test_foreign_beginnings_are_told_from_genuine_ones(long_sequences):
    train, _, new = long_sequences
    detector = Fusion(members(), beginnings=True).fit(train)
    foreign = noisy_sequences(300, 9, shift=1.5)
    for length in (8, 40):
        scores = [detector.score_samples(cut(own, length)) for own in (new, foreign)]
        assert auroc(*scores).value > 0.8


def test_beginnings_lie_between_four_tokens_and_the_whole(long_sequences):
    train, *_ = long_sequences
    detector = Fusion(members(), beginnings=True).fit(train)
    plain = Fusion(members()).fit(train)
    assert np.exp(detector.length_law_.shortest) < 6 < 50 < np.exp(plain.length_law_.shortest)
    assert detector.length_law_.longest == plain.length_law_.longest


@pytest.mark.parametrize("kind", [KNN, MahalanobisKNN])
def test_the_neighbours_of_a_beginning_are_of_other_documents(kind):
    train = correlated_sequences(60, seed=3, lengths=LONG)
    documents = torch.arange(60) // 2
    own = torch.tensor([5, 40])
    beginnings = Beginnings(train.select(own), torch.tensor([7, 30]))
    detector = kind(k=1, normalize="none").fit(train)
    found = detector.score_training(own, documents, beginnings).scores
    for number, score in zip(own.tolist(), found.tolist(), strict=True):
        others = documents != documents[number]
        alone = kind(k=1, normalize="none").fit(train)
        alone.bank_ = alone.bank_[others]
        place = own.tolist().index(number)
        assert score == pytest.approx(alone.score_samples(beginnings.select([place]))[0], rel=1e-6)


def test_it_is_saved(long_sequences, tmp_path):
    train, held_out, new = long_sequences
    detector = Fusion(members(), beginnings=True).fit(train).calibrate(held_out)
    detector.save(tmp_path / "detector")
    again = apood.load(tmp_path / "detector")
    assert again.beginnings is True
    np.testing.assert_array_equal(again.score_samples(cut(new, 6)), detector.score_samples(cut(new, 6)))


def test_the_summary_of_a_text_is_not_read():
    train = with_summary(correlated_sequences(80, lengths=(32, 60)))
    detector = default_detector(device="cpu", beginnings=True)
    assert detector.welcomes == frozenset()
    detector.members = None
    assert all(member.requires == {"tokens"} for member in detector._choose_members(train, None))


def test_sequences_that_are_short_anyway():
    train = correlated_sequences(100)
    with pytest.warns(DataWarning, match="beginnings=True changes nothing: .* fewer than 32 tokens") as caught:
        detector = Fusion([Mahalanobis()], beginnings=True).fit(train)
    assert [warning.filename for warning in caught] == [__file__], "it points at the call of fit"
    plain = Fusion([Mahalanobis()]).fit(train)
    assert detector.length_law_ == plain.length_law_


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beginnings": 1}, "beginnings must be True or False, got 1"),
        ({"members": [KNN(view="summary")], "beginnings": True}, "a beginning has no summary"),
    ],
)
def test_what_cannot_be(settings, message):
    with pytest.raises(InputError, match=message):
        Fusion(**settings).fit(correlated_sequences(60))


def test_the_length_of_outputs_is_a_sign_like_others():
    inputs = correlated_sequences(100, lengths=(3, 60))
    outputs = replace(inputs, encoder={"model": "small", "mode": "output"})
    laws = [Fusion([APOOD(steps=2), KNN()]).fit(own).length_law_ for own in (inputs, outputs)]
    assert not laws[0].is_flat and laws[1].is_flat and len(laws[1]) == 2
