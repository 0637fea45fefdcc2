"""Statistics of parts, merged, are those of everything, and a refined detector is the one that saw everything."""

import itertools

import pytest
import torch
from builders import correlated_sequences

from apood import APOOD, KNN, DeepSVDD, Fusion, Mahalanobis, MahalanobisKNN, TokenBatch
from apood.detectors.contract.refinable import Refinable
from apood.support.errors import InputError
from apood.tokens.batch import Ragged
from apood.tokens.source import trim_ends

SEQUENCES = correlated_sequences(300, 6, dtype=torch.float64)  # so that only merging rounds
SOME = SEQUENCES.select(slice(0, 100))
FITTED = {
    "mahalanobis": lambda: Mahalanobis(),
    "mahalanobis-knn": lambda: MahalanobisKNN(),
    "normalised": lambda: Mahalanobis(normalize="pooled"),
    "robust": lambda: APOOD(steps=5, heads=4, queries=2, device="cpu"),
    "paper": lambda: APOOD(steps=5, recipe="paper", device="cpu"),
    "fusion": lambda: Fusion([APOOD(steps=5, heads=4, device="cpu"), KNN(), Mahalanobis()]),
}


def measure_in_parts(detector, bounds):
    total = None
    for start, stop in itertools.pairwise(bounds):
        own = detector.measure(SEQUENCES.select(slice(start, stop)))
        total = own if total is None else detector.merge_measured(total, own)
    return total


@pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")
@pytest.mark.parametrize("name", FITTED)
def test_merged_statistics_are_those_of_everything(name: str):
    detector = FITTED[name]().fit(SOME)
    assert isinstance(detector, Refinable) and detector.refines
    whole = detector.measure(SEQUENCES)
    for bounds in ([0, 1, 2, 300], [0, 100, 299, 300], list(range(0, 301, 7)) + [300] * (300 % 7 > 0)):
        merged = measure_in_parts(detector, bounds)
        assert merged.keys() == whole.keys()
        for key, value in whole.items():
            torch.testing.assert_close(merged[key], value, rtol=1e-10, atol=1e-10)


def test_a_refined_mahalanobis_is_the_fit_on_everything():
    refined, full = Mahalanobis().fit(SOME), Mahalanobis().fit(SEQUENCES)
    refined.skips_first_, refined.skips_last_ = full.skips_first_, full.skips_last_
    refined.refine(measure_in_parts(refined, [0, 50, 170, 300]), {})
    torch.testing.assert_close(refined.mean_, full.mean_, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(refined.whitening_, full.whitening_, rtol=1e-10, atol=1e-10)


@pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")
@pytest.mark.parametrize("recipe", ["robust", "paper"])
def test_ap_ood_refined_by_its_own_sequences_stays_as_it_is(recipe: str):
    detector = APOOD(steps=5, recipe=recipe, device="cpu").fit(SEQUENCES)
    prototype, distance = detector.prototype_.clone(), detector.mean_distance_
    detector.refine(measure_in_parts(detector, [0, 120, 300]), {})
    torch.testing.assert_close(detector.prototype_, prototype, rtol=1e-5, atol=1e-5)
    assert detector.mean_distance_ == pytest.approx(distance, rel=1e-5)


@pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")
def test_a_fusion_refines_the_members_that_can_be_refined():
    detector = FITTED["fusion"]().fit(SOME)
    before = detector.members_[0].prototype_.clone()
    means = detector.means_.clone()
    detector.refine(detector.measure(SEQUENCES), detector.remember(SEQUENCES))
    assert not detector.members_[0].prototype_.equal(before)
    assert detector.means_[[0, 2]].equal(means[[0, 2]])  # their scale is that of the sample
    assert detector.means_[1] < means[1]  # among more sequences, the nearest ones are nearer
    assert Fusion([KNN(), KNN(k=2)]).refines and not Fusion([DeepSVDD()]).refines


def remember_in_parts(detector, bounds):
    rows = [detector.remember(SEQUENCES.select(slice(*own))) for own in itertools.pairwise(bounds)]
    return {name: torch.cat([own[name] for own in rows]) for name in rows[0]}


@pytest.mark.parametrize("make", [lambda: KNN(k=3, average=True), lambda: MahalanobisKNN(k=2)])
def test_refined_neighbours_are_the_fit_on_everything(make):
    refined, full = make().fit(SOME), make().fit(SEQUENCES)
    bounds = [0, 50, 170, 300]
    refined.refine(measure_in_parts(refined, bounds), remember_in_parts(refined, bounds))
    apart = refined.bank_.double() - full.bank_.double()
    torch.testing.assert_close(apart, apart[:1].expand_as(apart), rtol=0, atol=1e-6)  # another centre moves all alike
    new = correlated_sequences(40, 6, dtype=torch.float64, seed=5)
    assert refined.score_samples(new) == pytest.approx(full.score_samples(new), rel=1e-5)


def test_a_neighbour_left_out_of_a_refined_metric_is_one_of_all_sequences_behind_it():
    """Of 300 sequences 60 are remembered. A score of one of them is that of a covariance of the 299 others."""
    detector = MahalanobisKNN(k=1, normalize="none", shrinkage=0.0).fit(SOME)
    detector.refine(detector.measure(SEQUENCES), detector.remember(SEQUENCES.select(slice(0, 60))))
    assert detector.sequences_ == 300
    trimmed = trim_ends(SEQUENCES, first=detector.skips_first_, last=detector.skips_last_)
    vectors = torch.stack([own.double().mean(0) for own in trimmed])
    expected = []
    for number in range(60):
        others = torch.cat([vectors[:number], vectors[number + 1 :]])
        apart = vectors[:60][torch.arange(60) != number] - vectors[number]
        precision = torch.linalg.inv(torch.cov(others.T, correction=0))
        expected.append(-((apart @ precision) * apart).sum(1).min().sqrt())
    found = detector.score_training(torch.arange(60))
    assert not found.copied.any()
    torch.testing.assert_close(found.scores, (300 / 299) ** 0.5 * torch.stack(expected), rtol=1e-4, atol=0)


def test_a_refined_fusion_of_neighbours_has_the_scale_of_the_fit_on_everything():
    refined, full = (Fusion([KNN(), MahalanobisKNN()]).fit(own) for own in (SOME, SEQUENCES))
    bounds = [0, 50, 170, 300]
    sample = refined.means_
    refined.refine(measure_in_parts(refined, bounds), remember_in_parts(refined, bounds))
    torch.testing.assert_close(refined.floors_, full.floors_, rtol=0, atol=1e-5)
    assert ((refined.means_ - full.means_).abs() < 0.02 * (sample - full.means_).abs()).all()
    spreads = [own.spreads_ * own.weights_ for own in (refined, full)]
    torch.testing.assert_close(*spreads, rtol=0.01, atol=0)


def test_windows_of_a_document_are_no_neighbours_in_a_refined_fusion():
    """Each document has two windows that are nearly the same; the scale is that of distances to other documents."""
    alone = SEQUENCES.select(slice(0, 150))
    windows = Ragged(torch.tensor([0, 1] * 150), torch.arange(301))
    twice = torch.arange(150).repeat_interleave(2)
    doubled = alone.select(twice)
    doubled = TokenBatch(doubled.values + 1e-9, doubled.offsets, {"window": windows})
    plain, windowed = (Fusion([KNN(k=1)]).fit(SOME) for _ in range(2))
    plain.refine({}, plain.remember(alone))
    windowed.refine({}, windowed.remember(doubled))
    torch.testing.assert_close(windowed.means_, plain.means_, rtol=1e-3, atol=1e-3)


def test_weights_stay_those_of_the_sample():
    aux = correlated_sequences(60, 6, dtype=torch.float64, seed=9)
    weighed, plain = (Fusion([KNN(), Mahalanobis()]).fit(SOME, aux=own) for own in (aux, None))
    before = weighed.weights_.clone()
    for detector in (weighed, plain):
        detector.refine(detector.measure(SEQUENCES), detector.remember(SEQUENCES))
    assert weighed.weights_.equal(before) and not weighed.weights_.equal(plain.weights_)
    torch.testing.assert_close((weighed.spreads_ * weighed.weights_)[0], (plain.spreads_ * plain.weights_)[0])


def test_a_fusion_of_an_earlier_version_is_not_refined():
    detector = Fusion([KNN(), Mahalanobis()]).fit(SOME)
    del detector.weights_
    with pytest.raises(InputError, match="fitted by an earlier version"):
        detector.refine({}, {})
