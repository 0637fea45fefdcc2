"""Entries of a study: detectors with settings and a label."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import signature
from numbers import Integral
from typing import Any, Literal

from apood.detectors.contract.base import Detector
from apood.detectors.contract.registry import detector_class, name_class
from apood.support.checks import check_integer, suggest_name
from apood.support.errors import InputError

__all__ = ["Entry"]


@dataclass(frozen=True)
class Entry:
    """A detector with settings and a label: one row of a table.

    Attributes:
        method: name in the registry, `module:Class`, or class, of the detector.
        parameters: arguments of its constructor. The `seed`, or its default, is added to the seed of each split.
        name: label in the results. None makes one from the method and its parameters.
        aux: how many AUX sequences it learns from: "all", or a number n for the first n. A method that requires AUX
            sequences learns from all of them if this is 0.
    """

    method: str | type[Detector]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    aux: int | Literal["all"] = 0

    @classmethod
    def from_method(cls, method: Any) -> "Entry":
        """Return the entry of a method: an entry itself, a name, a class, or a detector with its parameters."""
        if isinstance(method, Entry):
            return method
        if isinstance(method, str) or (isinstance(method, type) and issubclass(method, Detector)):
            return cls(method)
        if not isinstance(method, Detector):
            raise InputError(f"A method is a name, a subclass of Detector, a detector or an Entry, got {method!r}.")
        kind, own = type(method), method.get_params(deep=False)
        defaults = {name: parameter.default for name, parameter in signature(kind).parameters.items()}
        return cls(kind, {name: value for name, value in own.items() if value != defaults[name]})

    @property
    def kind(self) -> type[Detector]:
        """The class of the detector."""
        return detector_class(self.method) if isinstance(self.method, str) else self.method

    @property
    def label(self) -> str:
        """The label in the results."""
        if self.name is not None:
            return self.name
        method = self.method if isinstance(self.method, str) and ":" not in self.method else self.kind.name
        aux = [] if self.aux == 0 else ["AUX"] if self.aux == "all" else [f"{self.aux} AUX"]
        return ", ".join([method, *(f"{key}={value}" for key, value in self.parameters.items()), *aux])

    @property
    def uses_aux(self) -> bool:
        """Whether it learns from AUX sequences."""
        return self.aux != 0 or self.make_detector().aux == "required"

    @property
    def requires(self) -> frozenset[str]:
        """The parts of the data that it needs: tokens, channels, or both."""
        return self.make_detector().requires

    @property
    def reads(self) -> frozenset[str]:
        """The parts of the data that it needs, and those that it uses if the data have them."""
        return self.requires | self.make_detector().welcomes

    @property
    def seeded(self) -> bool:
        """Whether its method has a parameter `seed`."""
        return "seed" in signature(self.kind).parameters

    @property
    def identity(self) -> tuple[type[Detector], dict[str, Any], int | str]:
        """Equal for two entries that give the same fit on the same data, whatever their labels."""
        detector = self.make_detector()
        return type(detector), detector.get_params(deep=False), self.aux or ("all" if self.uses_aux else 0)

    def make_detector(self, seed: int = 0) -> Detector:
        """Return the unfitted detector, with `seed` added to its own."""
        parameters = dict(self.parameters)
        if self.seeded:
            default = signature(self.kind).parameters["seed"].default
            own = parameters.get("seed", default if isinstance(default, int) else 0)
            # the detector refuses any other seed by name
            parameters["seed"] = own + seed if not isinstance(own, bool) and isinstance(own, Integral) else own
        return self.kind(**parameters)

    def check(self) -> None:
        """Raise an InputError if the method, a parameter or the use of AUX sequences is not allowed."""
        kind = self.kind
        name_class(kind)
        allowed = list(signature(kind).parameters)
        for key in self.parameters:
            if key not in allowed:
                there = f"there are {', '.join(allowed)}" if allowed else "it has none"
                hint = suggest_name(key, allowed, kind.renamed_parameters)
                raise InputError(f"{kind.name} has no parameter {key!r}{hint}; {there}.")
        try:
            detector = self.make_detector()
            detector.check_parameters()
        except (InputError, TypeError, ValueError) as error:
            reason = str(error).rstrip(".")
            raise InputError(f"The parameters of {kind.name} are not allowed: {reason}.") from error
        if self.aux != "all":
            check_integer("aux", self.aux, 0)
        if self.aux != 0 and detector.aux == "unused":
            raise InputError(f"{kind.name} learns from in-distribution data alone, so it cannot use AUX sequences.")
