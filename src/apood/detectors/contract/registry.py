"""The methods by name. A detector is added by one file and one line here."""

from importlib import import_module

from apood.detectors.contract.base import Detector
from apood.support.checks import suggest_name
from apood.support.errors import InputError

__all__ = ["DEFAULT", "METHODS", "detector_class"]

METHODS: dict[str, str] = {
    "ap-ood": "apood.detectors.ap_ood.detector:APOOD",
    "mahalanobis": "apood.detectors.mahalanobis:Mahalanobis",
    "knn": "apood.detectors.knn:KNN",
    "mahalanobis-knn": "apood.detectors.knn:MahalanobisKNN",
    "length": "apood.detectors.length:Length",
    "deep-svdd": "apood.detectors.deep_svdd:DeepSVDD",
    "deep-sad": "apood.detectors.deep_svdd:DeepSAD",
    "relative-mahalanobis": "apood.detectors.relative_mahalanobis:RelativeMahalanobis",
    "binary-logits": "apood.detectors.binary_logits:BinaryLogits",
    "perplexity": "apood.detectors.perplexity:Perplexity",
    "entropy": "apood.detectors.entropy:Entropy",
    "msp": "apood.detectors.logits:MSP",
    "energy": "apood.detectors.logits:Energy",
    "fusion": "apood.detectors.fusion:Fusion",
}

DEFAULT = "fusion"
"""The method to begin with, which is also called `default`."""


def detector_class(method: str) -> type[Detector]:
    """The class of a method."""
    if method == "default":
        method = DEFAULT
    if method not in METHODS:
        raise InputError(
            f"There is no method {method!r}{suggest_name(method, METHODS)}; there are {', '.join(METHODS)}."
        )
    module, name = METHODS[method].split(":")
    found: type[Detector] = getattr(import_module(module), name)
    return found
