"""Checks of arguments and of optional packages, and wording that error messages share."""

import importlib
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

from apood.support.errors import InputError

__all__ = [
    "check_choice",
    "check_flag",
    "check_integer",
    "check_number",
    "format_count",
    "format_duration",
    "import_optional",
    "shorten",
    "suggest_name",
]

_LARGEST = 2**63 - 1  # torch and numpy take no larger integers
_LONGEST = 200  # characters of a value in a message


def check_integer(name: str, value: Any, least: int) -> None:
    """Raise InputError if `value` is not an integer (of Python or numpy) of at least `least` that fits into 64 bits."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{name} must be a whole number, got {shorten(value)}.")
    if int(value) < least:
        raise InputError(f"{name} must be at least {least}, got {shorten(value, str)}.")
    if int(value) > _LARGEST:
        raise InputError(f"{name} must be at most {_LARGEST}, got {shorten(value, str)}.")


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
    too_large = isinstance(value, int) and abs(value) > sys.float_info.max
    if not (real and not too_large and least <= value <= most and above < value < below):
        signs = ((">=", least), (">", above), ("<=", most), ("<", below))
        bounds = " and ".join(f"{sign} {bound:g}" for sign, bound in signs if math.isfinite(bound))
        raise InputError(f"{name} must be a finite number{' ' if bounds else ''}{bounds}, got {shorten(value)}.")


def shorten(value: Any, show: Callable[[Any], str] = repr) -> str:
    """Return a value for a message: only its beginning if it is long."""
    try:
        text = show(value)
    except ValueError:  # Python does not write integers of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def check_flag(name: str, value: Any) -> None:
    """Raise InputError if `value` is neither True nor False."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False, got {shorten(value)}.")


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise InputError if `value` is not one of `allowed`."""
    if value not in allowed:
        hint = suggest_name(value, allowed)
        raise InputError(f"{name} must be one of {', '.join(allowed)}, got {shorten(value)}{hint}.")


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


def format_duration(seconds: float) -> str:
    """Return a duration in the unit that suits it."""
    if seconds < 90:
        return format_count(max(1, round(seconds)), "second")
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.0f} hours" if seconds < 3 * 86400 else f"{seconds / 86400:.0f} days"


def suggest_name(given: object, known: Iterable[object], renamed: Mapping[str, str] | None = None) -> str:
    """Return a hint to put after an unknown name, such as ` (did you mean 'knn'?)`; empty if no name is similar.

    `renamed` has the new names of former ones.
    """
    if (now := (renamed or {}).get(str(given))) is not None:
        return f" (it is called {now!r} now)"
    names = {str(name).casefold(): name for name in known}
    similar = get_close_matches(str(given).casefold(), names, n=1)
    return f" (did you mean {names[similar[0]]!r}?)" if similar else ""
