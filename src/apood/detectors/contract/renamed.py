"""Arguments of constructors that had another name before."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from apood.detectors.contract.base import Detector
from apood.support.errors import InputError

__all__ = ["name_renamed"]

P = ParamSpec("P")
D = TypeVar("D", bound=Detector)


def name_renamed(constructor: Callable[Concatenate[D, P], None]) -> Callable[Concatenate[D, P], None]:
    """Return a constructor that answers the former name of an argument with the new one."""

    @wraps(constructor)
    def construct(self: D, /, *args: P.args, **kwargs: P.kwargs) -> None:
        for former, now in self.renamed_parameters.items():
            if former in kwargs:
                raise InputError(f"{self.name} has no parameter {former!r}: it is called {now!r} now.")
        constructor(self, *args, **kwargs)

    return construct
