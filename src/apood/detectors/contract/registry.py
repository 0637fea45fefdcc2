"""The methods by name: those of apood, those that other distributions add, and classes that a user names.

A detector becomes part of apood by one file and one line in `METHODS`. Another distribution adds a detector by an entry
point in the group `apood.detectors`, whose name is the name of the method:

    [project.entry-points."apood.detectors"]
    my-method = "my_package.my_module:MyDetector"

Any other class is named as `module:Class`. Only a user can do that: a saved detector never makes apood import a module.
"""

import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from apood.detectors.contract.base import Detector
from apood.support.checks import suggest_name
from apood.support.errors import InputError

__all__ = ["DEFAULT", "METHODS", "detector_class", "find_saved_class", "list_methods", "name_class"]

METHODS: dict[str, str] = {
    "ap-ood": "apood.detectors.ap_ood.detector:APOOD",
    "mahalanobis": "apood.detectors.mahalanobis:Mahalanobis",
    "knn": "apood.detectors.knn:KNN",
    "mahalanobis-knn": "apood.detectors.knn:MahalanobisKNN",
    "trusted": "apood.detectors.trusted:Trusted",
    "coherence": "apood.detectors.coherence:Coherence",
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
    """Return the class of a method.

    An entry point is looked up only for a name that is not one of apood's own. `module:Class` imports the module, which
    may lie in the current folder.
    """
    if ":" in method:
        return _import_class(method)
    if method == "default":
        method = DEFAULT
    if method in METHODS:
        module, name = METHODS[method].split(":")
        found: type[Detector] = getattr(import_module(module), name)
        return found
    added = _find_entry_points()
    if method not in added:
        known = [*METHODS, *sorted(added)]
        raise InputError(
            f"There is no method {method!r}{suggest_name(method, known)}; there are {', '.join(known)}, and "
            "module:Class for one of your own."
        )
    return _load(added[method])


def name_class(kind: type[Detector]) -> dict[str, str]:
    """Return what a saved detector says of its class: its method and, if that is not registered, its module."""
    name = getattr(kind, "name", None)
    if not isinstance(name, str):
        raise InputError(f"{kind.__qualname__} has no name: set the class attribute `name` to that of the method.")
    # Looking for entry points reads the metadata of every installed distribution.
    if (name in METHODS or name in _find_entry_points()) and detector_class(name) is kind:
        return {"method": name}
    return {"method": name, "class": f"{kind.__module__}:{kind.__qualname__}"}


def find_saved_class(method: str, home: str | None) -> type[Detector]:
    """Return the class that `name_class` described: a registered one, or one that was imported already.

    The module may have another name than it had, because that of a script that is run is `__main__`.
    """
    if home is None:
        if ":" in method:
            raise InputError(f"A saved detector cannot name the class {method!r} as its method.")
        return detector_class(method)
    module, _, place = home.partition(":")
    found = [kind for kind in _list_subclasses(Detector) if kind.__qualname__ == place and kind.name == method]
    if not found:
        raise InputError(
            f"its method {method!r} is the class {home}, and apood does not import what a file names: import the class "
            f"before you load the detector, on the command line as in `apood --import {home} inspect detector`."
        )
    return max(reversed(found), key=lambda kind: kind.__module__ == module)  # the last one that was defined


def _list_subclasses(kind: type[Detector]) -> Iterator[type[Detector]]:
    for own in kind.__subclasses__():
        yield own
        yield from _list_subclasses(own)


def _import_class(method: str) -> type[Detector]:
    module, _, name = method.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # the command `apood` does not look there, as `python -m` does
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # importing code of others can raise anything
        raise InputError(f"The method {method!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Detector)):
        raise InputError(f"The method {method!r} is {found!r}, not a subclass of Detector.")
    return found


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
