"""Texts as users hold them: lists, tuples, generators, and columns of numpy, pandas and polars."""

from collections.abc import Iterable, Mapping
from typing import Any

from apood.support.errors import InputError

__all__ = ["list_texts"]


def list_texts(given: Any, *, allow_empty: bool, what: str = "Texts") -> list[str]:
    """Return the texts of any iterable as a list. Raise InputError for anything that is not a text, or empty ones.

    Args:
        given: the texts.
        allow_empty: whether texts of nothing but white space are allowed.
        what: what the texts are called in messages.
    """
    if isinstance(given, str | bytes):
        raise InputError(f"{what} must be a list of strings, got one {type(given).__name__}: put it into a list.")
    if getattr(given, "ndim", 1) != 1 or isinstance(given, Mapping) or hasattr(given, "columns"):
        raise InputError(f"{what} must be one column of strings, got {type(given).__name__}: choose a column of it.")
    if not isinstance(given, Iterable):
        raise InputError(f"{what} must be a list of strings, got {type(given).__name__}.")
    texts = []
    for index, text in enumerate(given):
        if not isinstance(text, str):
            raise InputError(f"{what} must be strings, got {type(text).__name__} at index {index}.")
        if not allow_empty and not text.strip():
            raise InputError(f"{what} must not be empty here, and the text at index {index} is: leave it out.")
        texts.append(str(text))  # numpy has a string type of its own
    return texts
