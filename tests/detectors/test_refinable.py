"""Statistics of parts, merged, are those of everything, and a refined detector is the one that saw everything."""

import itertools

import pytest
import torch
from builders import correlated_sequences

from apood import APOOD, KNN, Fusion, Mahalanobis
from apood.detectors.contract.refinable import Refinable

SEQUENCES = correlated_sequences(300, 6, dtype=torch.float64)  # so that only merging rounds
SOME = SEQUENCES.select(slice(0, 100))
FITTED = {
    "mahalanobis": lambda: Mahalanobis(),
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
    refined.refine(measure_in_parts(refined, [0, 50, 170, 300]))
    torch.testing.assert_close(refined.mean_, full.mean_, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(refined.whitening_, full.whitening_, rtol=1e-10, atol=1e-10)


@pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")
@pytest.mark.parametrize("recipe", ["robust", "paper"])
def test_ap_ood_refined_by_its_own_sequences_stays_as_it_is(recipe: str):
    detector = APOOD(steps=5, recipe=recipe, device="cpu").fit(SEQUENCES)
    prototype, distance = detector.prototype_.clone(), detector.mean_distance_
    detector.refine(measure_in_parts(detector, [0, 120, 300]))
    torch.testing.assert_close(detector.prototype_, prototype, rtol=1e-5, atol=1e-5)
    assert detector.mean_distance_ == pytest.approx(distance, rel=1e-5)


@pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")
def test_a_fusion_refines_the_members_that_can_be_refined():
    detector = FITTED["fusion"]().fit(SOME)
    before = detector.score_samples(SEQUENCES)
    vectors = detector.members_[1].score_samples(SEQUENCES)
    detector.refine(detector.measure(SEQUENCES))
    assert not (detector.score_samples(SEQUENCES) == before).all()
    assert (detector.members_[1].score_samples(SEQUENCES) == vectors).all()
    assert not Fusion([KNN(), KNN(k=2)]).refines
