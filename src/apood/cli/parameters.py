"""A method's parameters as people write them: `--set key=value` by the annotations of its constructor."""

import types
from collections.abc import Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from apood.support.errors import InputError
from apood.support.wording import meant

if TYPE_CHECKING:
    from apood.detectors.contract.base import Detector

__all__ = ["defaults", "parse_settings", "written"]

_TRUTH = {"true": True, "false": False}
_KINDS = {types.NoneType: "null", bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def defaults(method: "type[Detector]") -> dict[str, Any]:
    """The parameters of a method with the values that they have when nobody sets them."""
    return {name: parameter.default for name, parameter in signature(method).parameters.items()}


def written(value: Any) -> str:
    """A parameter's value the way `--set` takes it; None is null, since `none` is often a choice of its own."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_settings(method: "type[Detector]", settings: Sequence[str]) -> dict[str, Any]:
    """The constructor's arguments that texts like `k=5` or `normalize=tokens` stand for."""
    allowed = defaults(method)
    annotations = get_type_hints(method.__init__)
    parsed: dict[str, Any] = {}
    for setting in settings:
        key, separator, text = setting.partition("=")
        if not separator:
            raise InputError(f"--set takes key=value, got {setting!r}.")
        if key not in allowed:
            listed = ", ".join(f"{name}={written(value)}" for name, value in allowed.items())
            there = f"there are {listed}" if listed else "it has none"
            raise InputError(f"The method {method.name} has no parameter {key!r}{meant(key, allowed)}: {there}.")
        if key in parsed:
            raise InputError(f"The parameter {key!r} is set twice.")
        parsed[key] = _parsed(key, text, annotations[key])
    return parsed


def _parsed(key: str, text: str, annotation: Any) -> Any:
    choices = [choice for kind in _alternatives(annotation) for choice in _readings(kind, text)]
    if not choices:
        if not all(_is_written(kind) for kind in _alternatives(annotation)):
            raise InputError(f"{key} can be set in Python only: leave it out here, got {text!r}.")
        kinds = " or ".join(dict.fromkeys(_described(kind) for kind in _alternatives(annotation)))
        listed = [written(value) for kind in _alternatives(annotation) for value in get_args(kind)]
        raise InputError(f"{key} must be {kinds}, got {text!r}{meant(text, listed)}.")
    return choices[0]


def _alternatives(annotation: Any) -> list[Any]:
    """The kinds that an annotation allows; text of any kind comes last, since everything reads as such."""
    union = get_origin(annotation) in (Union, types.UnionType)
    kinds = [kind for part in get_args(annotation) for kind in _alternatives(part)] if union else [annotation]
    return sorted(kinds, key=lambda kind: kind is str)


def _readings(kind: Any, text: str) -> list[Any]:
    """The value that `text` has as `kind`, or nothing."""
    if get_origin(kind) is Literal:
        return [value for value in get_args(kind) if written(value) == text]
    if kind is types.NoneType:
        return [None] if text.lower() in ("null", "none") else []
    if kind is bool:
        return [_TRUTH[text.lower()]] if text.lower() in _TRUTH else []
    if kind in (int, float, str):
        try:
            return [kind(text)]
        except ValueError:
            return []
    return []


def _is_written(kind: Any) -> bool:
    """Whether there is a text for a value of this kind."""
    return get_origin(kind) is Literal or kind in _KINDS


def _described(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(written(value) for value in get_args(kind))
    return _KINDS[kind]
