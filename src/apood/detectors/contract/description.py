"""Detectors and their values as JSON, and back: by the name of the method, never by pickle."""

import math
from typing import Any

import numpy as np

from apood.detectors.contract.base import Detector
from apood.detectors.contract.registry import detector_class

__all__ = ["built", "described", "from_json", "to_json"]


def described(detector: Detector) -> dict[str, Any]:
    """Which detector it is before it learns anything."""
    parameters = detector.get_params(deep=False)
    return {"method": detector.name, "parameters": {key: to_json(value) for key, value in parameters.items()}}


def built(description: dict[str, Any]) -> Detector:
    """The detector that `described` has described."""
    parameters = {key: from_json(value) for key, value in description["parameters"].items()}
    return detector_class(description["method"])(**parameters)


def to_json(value: Any) -> Any:
    """A value as JSON has it, which has no infinities and no detectors."""
    if isinstance(value, Detector):
        return described(value)
    if isinstance(value, list):
        return [to_json(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def from_json(value: Any) -> Any:
    """What `to_json` was given."""
    match value:
        case {"float": text, **rest} if not rest:
            return float(text)
        case {"method": str(), "parameters": dict(), **rest} if not rest:
            return built(value)
        case list():
            return [from_json(item) for item in value]
        case _:
            return value
