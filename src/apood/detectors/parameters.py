"""The check of constructor arguments that count something."""

from numbers import Integral
from typing import Any

from apood.support.errors import InputError

__all__ = ["whole_number"]


def whole_number(name: str, value: Any, least: int) -> None:
    """Refuses what is not an integer (Python's or numpy's) of at least `least`."""
    if not isinstance(value, Integral):
        raise InputError(f"{name} must be a whole number, got {value!r}.")
    if int(value) < least:
        raise InputError(f"{name} must be at least {least}, got {value}.")
