"""Whether two detectors, or their scores, are the same."""

import numpy as np
import torch

from apood.detectors.contract.base import Detector


def learnt(detector):
    return {key: value for key, value in vars(detector).items() if key.endswith("_")}


def same_value(found, expected):
    """Whether two things are equal: tensors bit by bit, detectors by their parameters and what they learnt."""
    if isinstance(expected, torch.Tensor):
        return torch.equal(found, expected)
    if isinstance(expected, Detector):
        return type(found) is type(expected) and same_value(found.__getstate__(), expected.__getstate__())
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
