"""The methods by name: those of apood, and those that other distributions add.

A detector becomes part of apood by one file and one line in `METHODS`. Another distribution adds a detector by an entry
point in the group `apood.detectors`, whose name is the name of the method:

    [project.entry-points."apood.detectors"]
    my-method = "my_package.my_module:MyDetector"
"""

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from apood.detectors.contract.base import Detector
from apood.support.checks import suggest_name
from apood.support.errors import InputError

__all__ = ["DEFAULT", "METHODS", "detector_class", "list_methods"]

METHODS: dict[str, str] = {
    "ap-ood": "apood.detectors.ap_ood.detector:APOOD",
    "mahalanobis": "apood.detectors.mahalanobis:Mahalanobis",
    "knn": "apood.detectors.knn:KNN",
    "mahalanobis-knn": "apood.detectors.knn:MahalanobisKNN",
    "trusted": "apood.detectors.trusted:Trusted",
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
"""The methods of apood."""

DEFAULT = "fusion"
"""The recommended method, which is also called `default`."""

_GROUP = "apood.detectors"


def list_methods() -> list[str]:
    """Return the names of all methods: those of apood, then those of other distributions in alphabetical order."""
    return [*METHODS, *sorted(_find_entry_points())]


def detector_class(method: str) -> type[Detector]:
    """Return the class of a method; an entry point is looked up only for a name that is not one of apood's own."""
    if method == "default":
        method = DEFAULT
    if method in METHODS:
        module, name = METHODS[method].split(":")
        found: type[Detector] = getattr(import_module(module), name)
        return found
    added = _find_entry_points()
    if method not in added:
        known = [*METHODS, *sorted(added)]
        raise InputError(f"There is no method {method!r}{suggest_name(method, known)}; there are {', '.join(known)}.")
    return _load(added[method])


def _find_entry_points() -> dict[str, EntryPoint]:
    """Return the entry points of other distributions by name; they cannot replace a method of apood."""
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=_GROUP), key=_describe):
        if point.name in METHODS:
            continue
        if point.name in found:
            raise InputError(
                f"Two distributions add a method {point.name!r}: {_describe(found[point.name])} and "
                f"{_describe(point)}; uninstall one of them."
            )
        found[point.name] = point
    return found


def _load(point: EntryPoint) -> type[Detector]:
    try:
        found = point.load()
    except Exception as error:  # importing code of others can raise anything
        raise InputError(
            f"The method {point.name!r} cannot be imported from {_describe(point)}: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Detector)):
        raise InputError(f"The method {point.name!r} of {_describe(point)} is {found!r}, not a subclass of Detector.")
    if getattr(found, "name", None) != point.name:  # a saved detector is found by the name of its class
        raise InputError(
            f"The method {point.name!r} of {_describe(point)} has the name {getattr(found, 'name', None)!r} in its "
            "class; both names must be the same."
        )
    return found


def _describe(point: EntryPoint) -> str:
    return f"{point.value} ({point.dist.name if point.dist is not None else 'unknown distribution'})"
