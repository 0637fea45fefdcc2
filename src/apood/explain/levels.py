"""How suspicious words are, in levels that all outputs share."""

from collections.abc import Sequence

from apood.explain.spans import Span

__all__ = ["grade_words"]

_LEVELS = (0.25, 0.5, 0.75)  # relative to the contribution of the most suspicious word


def grade_words(words: Sequence[Span]) -> list[int]:
    """Return the level of each word: 0 (not marked) to 3, by its contribution relative to the largest one."""
    largest = max((word.contribution for word in words), default=0.0)
    return [sum(word.contribution >= share * largest > 0 for share in _LEVELS) for word in words]
