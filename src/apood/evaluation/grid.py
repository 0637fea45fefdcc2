"""What a search tries: a detector as it is, and with every setting of a grid."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sklearn.base import clone

from apood.detectors.contract.base import Detector
from apood.support.checks import check_integer, suggest_name
from apood.support.errors import InputError

__all__ = ["Candidate", "candidates", "reseeded"]


class Candidate(NamedTuple):
    """A detector to try, and what sets it apart: nothing for the detector as it was given."""

    settings: dict[str, Any]
    given: bool
    detector: Detector


def candidates(detector: Detector, grid: Mapping[str, Sequence[Any]] | None, dim: int, learns: bool) -> list[Candidate]:
    """The detector as it is, then with each setting of the grid; each once, and all known to be allowed."""
    detector.check_parameters()
    own = detector.get_params(deep=False)
    if grid is None:
        space = detector.hyperparameter_space(dim, supervised=learns)
        if not any(space):
            raise InputError(f"{detector.name} has no settings that are usually searched: say in a grid what to try.")
    else:
        space = _combinations(detector, grid)
    found: list[Candidate] = []
    known = [own]
    for settings in space:
        parameters = own | settings
        changed: Detector = clone(detector).set_params(**settings)
        changed.check_parameters()
        if parameters == own:
            found.append(Candidate(settings, True, changed))
        elif parameters not in known:
            known.append(parameters)
            found.append(Candidate(settings, False, changed))
    if not any(candidate.given for candidate in found):
        found.insert(0, Candidate({}, True, clone(detector)))
    return found


def _combinations(detector: Detector, grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    allowed = detector.get_params(deep=False)
    if not grid:
        raise InputError("The grid is empty: it names no parameter.")
    for name, values in grid.items():
        if name not in allowed:
            there = f"there are {', '.join(allowed)}" if allowed else "it has none"
            raise InputError(
                f"{detector.name} has no parameter {name!r}{suggest_name(name, allowed)} to search: {there}."
            )
        if not len(values):
            raise InputError(f"The grid is empty: it has no value for {name}.")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def reseeded(detector: Detector, seeds: int) -> list[Detector]:
    """The detector with as many seeds as asked for, its own first."""
    check_integer("seeds", seeds, least=1)
    if seeds == 1:
        return [detector]
    first = detector.get_params(deep=False).get("seed")
    if first is None:
        raise InputError(f"{detector.name} has no seed: it gives the same result each time, so seeds must be 1.")
    return [clone(detector).set_params(seed=first + number) for number in range(seeds)]
