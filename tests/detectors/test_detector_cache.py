"""What a detector keeps for scoring beside what it learnt: made once, and never older than the detector.

The meta device stands for another device, since no number is read.
"""

import copy
import pickle
from threading import Lock

import pytest
import torch
from builders import correlated_sequences
from sklearn.base import clone

from apood.detectors.contract.artefact import load_detector
from apood.detectors.mahalanobis import Mahalanobis

CPU, THERE = torch.device("cpu"), torch.device("meta")


@pytest.fixture
def detector():
    return Mahalanobis().fit(correlated_sequences(20, 3))


def test_a_tensor_is_copied_once_to_a_device_and_never_to_its_own(detector):
    assert detector._copy_on(CPU, "mean_") is detector.mean_
    moved = detector._copy_on(THERE, "mean_")
    assert moved.device == THERE and moved.dtype == detector.mean_.dtype and moved.shape == detector.mean_.shape
    assert detector._copy_on(THERE, "mean_") is moved


def test_what_is_made_inside_of_inference_mode_is_used_outside(detector):
    with torch.inference_mode():
        moved = detector._copy_on(THERE, "mean_")
    assert not moved.is_inference()


@pytest.mark.parametrize("change", ["learn", "set", "fit"])
def test_every_change_of_what_scores_depend_on_empties_the_cache(detector, change):
    before, data = detector._copy_on(THERE, "mean_"), correlated_sequences(20, 3, seed=1)
    if change == "learn":
        detector.mean_ = detector.mean_ + 1
    elif change == "set":
        detector.set_params(normalize="tokens")
    else:
        detector.fit(data)
    assert detector._copy_on(THERE, "mean_") is not before


def test_a_calibration_keeps_the_cache(detector):
    before = detector._copy_on(THERE, "mean_")
    detector.calibrate(correlated_sequences(20, 3, seed=1))
    assert detector._copy_on(THERE, "mean_") is before


def test_a_change_while_something_is_made_is_not_forgotten(detector):
    def make():
        mean = detector.mean_
        detector.mean_ = mean + 1  # as another thread might
        return mean

    assert detector._get_cached("sum", make) is not detector.mean_
    assert detector._get_cached("sum", lambda: detector.mean_) is detector.mean_


def test_the_cache_is_nothing_that_is_learnt(detector, tmp_path):
    names = set(vars(detector))
    detector._get_cached("lock", Lock)  # which can be neither copied nor pickled
    detector.save(tmp_path / "detector")
    for other in (copy.deepcopy(detector), copy.copy(detector), pickle.loads(pickle.dumps(detector))):
        assert set(vars(other)) == names
    assert set(vars(load_detector(tmp_path / "detector"))) == names
    assert detector._get_cached("lock", lambda: None) is not None
    assert "_cache" not in vars(clone(detector))
