"""Pieces of messages that several rooms need: counts in words, and names that were probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["counted", "meant"]


def counted(count: int, what: str) -> str:
    """`1 text`, `2 texts`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def meant(given: object, known: Iterable[object]) -> str:
    """` (did you mean 'knn'?)` to stand behind a name that nobody knows, empty where none is like it."""
    spelt = {str(name).casefold(): name for name in known}
    near = get_close_matches(str(given).casefold(), spelt, n=1)
    return f" (did you mean {spelt[near[0]]!r}?)" if near else ""
