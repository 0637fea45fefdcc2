"""Checks of arguments and of optional packages, and wording that error messages share."""

import importlib
import math
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

from apood.support.errors import InputError

__all__ = ["check_choice", "check_integer", "check_number", "format_count", "import_optional", "suggest_name"]


def check_integer(name: str, value: Any, least: int) -> None:
    """Raise InputError if `value` is not an integer (of Python or numpy) of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{name} must be a whole number, got {value!r}.")
    if int(value) < least:
        raise InputError(f"{name} must be at least {least}, got {value}.")


def check_number(
    name: str,
    value: Any,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> None:
    """Raise InputError if `value` is not a finite number with least <= value <= most and above < value < below."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    if not (real and least <= value <= most and above < value < below):
        signs = ((">=", least), (">", above), ("<=", most), ("<", below))
        bounds = " and ".join(f"{sign} {bound:g}" for sign, bound in signs if math.isfinite(bound))
        raise InputError(f"{name} must be a finite number{' ' if bounds else ''}{bounds}, got {value!r}.")


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise InputError if `value` is not one of `allowed`."""
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}, got {value!r}{suggest_name(value, allowed)}.")


def import_optional(module: str, extra: str, purpose: str) -> Any:
    """Return a module of a package that not everybody installs. Raise InputError if it is missing."""
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:  # OSError: a C library that the package wraps is missing
        package = module.partition(".")[0]
        raise InputError(f"{purpose} needs the package {package}: pip install 'apood[{extra}]'.") from error


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun: `1 text`, `2,000 texts`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def suggest_name(given: object, known: Iterable[object]) -> str:
    """Return a hint to put after an unknown name, such as ` (did you mean 'knn'?)`; empty if no name is similar."""
    names = {str(name).casefold(): name for name in known}
    similar = get_close_matches(str(given).casefold(), names, n=1)
    return f" (did you mean {names[similar[0]]!r}?)" if similar else ""
