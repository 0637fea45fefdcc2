"""Checks of constructor arguments that several detectors share."""

from numbers import Integral
from typing import Any

from apood.support.errors import InputError

__all__ = ["one_of", "whole_number"]


def whole_number(name: str, value: Any, least: int) -> None:
    """Refuses what is not an integer (Python's or numpy's) of at least `least`."""
    if not isinstance(value, Integral):
        raise InputError(f"{name} must be a whole number, got {value!r}.")
    if int(value) < least:
        raise InputError(f"{name} must be at least {least}, got {value}.")


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuses a value that is not among the allowed ones."""
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}, got {value!r}.")
