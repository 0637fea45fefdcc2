"""The methods by name. A detector is added by one file and one line here."""

from importlib import import_module

from apood.detectors.base import Detector
from apood.support.errors import InputError

__all__ = ["METHODS", "detector_class"]

METHODS: dict[str, str] = {
    "ap-ood": "apood.detectors.ap_ood:APOOD",
    "mahalanobis": "apood.detectors.mahalanobis:Mahalanobis",
    "knn": "apood.detectors.knn:KNN",
    "length": "apood.detectors.length:Length",
}


def detector_class(method: str) -> type[Detector]:
    """The class of a method."""
    if method not in METHODS:
        raise InputError(f"There is no method {method!r}; there are {', '.join(METHODS)}.")
    module, name = METHODS[method].split(":")
    found: type[Detector] = getattr(import_module(module), name)
    return found
