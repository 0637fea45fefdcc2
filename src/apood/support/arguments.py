"""Checks of arguments that several rooms share."""

import math
from numbers import Integral, Real
from typing import Any

from apood.support.errors import InputError
from apood.support.wording import meant

__all__ = ["number", "one_of", "whole_number"]


def whole_number(name: str, value: Any, least: int) -> None:
    """Refuses what is not an integer (Python's or numpy's) of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{name} must be a whole number, got {value!r}.")
    if int(value) < least:
        raise InputError(f"{name} must be at least {least}, got {value}.")


def number(
    name: str,
    value: Any,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> None:
    """Refuses what is not a finite number with `least` <= value <= `most` and `above` < value < `below`."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    if not (real and least <= value <= most and above < value < below):
        signs = ((">=", least), (">", above), ("<=", most), ("<", below))
        bounds = " and ".join(f"{sign} {bound:g}" for sign, bound in signs if math.isfinite(bound))
        raise InputError(f"{name} must be a finite number{' ' if bounds else ''}{bounds}, got {value!r}.")


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuses a value that is not among the allowed ones."""
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}, got {value!r}{meant(value, allowed)}.")
