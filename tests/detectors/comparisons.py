"""Whether two detectors, or their scores, are the same."""

import copy

import numpy as np
import torch

from apood.detectors.contract.base import Detector

CALIBRATION = ("accept_", "threshold_", "calibration_scores_")


def learnt(detector):
    calibration = {key: getattr(detector, key) for key in CALIBRATION if hasattr(detector, key)}
    return {key: value for key, value in vars(detector).items() if key.endswith("_")} | calibration


def with_parameters(detector, **parameters):
    """Return a copy of a fitted detector that scores with other parameters, as if it had been fitted with them."""
    twin = copy.copy(detector).set_params(**parameters)
    if "score" in parameters:  # AP-OOD learns it, but nothing else depends on it
        twin.score_ = parameters["score"]
    twin._remember_parameters()
    return twin


def same_value(found, expected):
    """Whether two things are equal: tensors bit by bit, detectors by their parameters and what they learnt."""
    if isinstance(expected, torch.Tensor):
        return torch.equal(found, expected)
    if isinstance(expected, Detector):
        return (
            type(found) is type(expected)
            and same_value(found.get_params(), expected.get_params())
            and same_value(learnt(found), learnt(expected))
        )
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same_value(found[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same_value, found, expected))
    return found == expected


def same_state(found, expected):
    names = learnt(expected).keys()
    return learnt(found).keys() == names and all(same_value(learnt(found)[k], learnt(expected)[k]) for k in names)


def assert_same_scores(found, expected, tolerance=1e-6):
    """The same but for rounding, relative to the largest: a score near 0 is a difference of large numbers."""
    assert found.shape == expected.shape and found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())
