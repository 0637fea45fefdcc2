"""Characters that cannot be seen, or that change how others are shown, written so that they can be seen.

Texts come from strangers. A terminal obeys control characters, marks of the writing direction reorder what a reader
sees, and characters without width hide words. Each of them is shown by its number, such as ⟨U+202E⟩.
"""

import re
import unicodedata
from collections.abc import Iterator

__all__ = ["make_visible", "split_visible"]

_BLANK = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"  # blank by design, though not of a category that is
_CATEGORIES = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")
_SHOWN = "\n\t"
_PRINTABLE = re.compile(r"[\x20-\x7e\xa1-\xac\xae-\u02ff\n\t]*")  # most texts need no closer look


def split_visible(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the text in parts: runs of ordinary characters, and characters by their numbers (then with True)."""
    if _PRINTABLE.fullmatch(text):
        if text:
            yield text, False
        return
    start = 0
    for place, character in enumerate(text):
        if _is_hidden(character):
            if place > start:
                yield text[start:place], False
            yield f"⟨U+{ord(character):04X}⟩", True
            start = place + 1
    if start < len(text):
        yield text[start:], False


def make_visible(text: str) -> str:
    """Return the text with hidden characters shown by their numbers."""
    return "".join(part for part, _ in split_visible(text))


def _is_hidden(character: str) -> bool:
    if character in _SHOWN:
        return False
    return (
        unicodedata.category(character) in _CATEGORIES
        or character in _BLANK
        or "\U000e0100" <= character <= "\U000e01ef"  # variation selectors, which can carry a hidden text
    )
