"""The lengths of served texts, beside those of the texts that set the threshold."""

import logging
from collections.abc import Iterable

from apood.pipeline.judging import Judgement
from apood.pipeline.seen import MOST_UNUSUAL, Seen

__all__ = ["LengthWatch"]

_LEAST = 100  # texts, before anything is said about them
_log = logging.getLogger("apood")


class LengthWatch:
    """Counts the texts of unusual lengths of one detector, and warns once in the log if they are many.

    Args:
        seen: numbers about the texts that set the threshold; None if they are unknown, and nothing is unusual.
    """

    def __init__(self, seen: Seen | None) -> None:
        self._seen = seen
        self._scored = self._unusual = 0
        self._warned = False

    def count(self, judgements: Iterable[Judgement]) -> int:
        """Return how many texts have an unusual length. One that cannot be scored has no length."""
        seen = self._seen
        if seen is None:
            return 0
        tokens = [own.tokens for own in judgements if own.score != -float("inf")]
        unusual = sum(not seen.is_usual(own) for own in tokens)
        self._scored += len(tokens)
        self._unusual += unusual
        if not self._warned and self._scored >= _LEAST and self._unusual > MOST_UNUSUAL * self._scored:
            self._warned = True
            _log.warning(
                "%s of %s texts are shorter or longer than 99%% of the texts that set the threshold (%s to %s tokens): "
                "the accept rate is not guaranteed for them.",
                *(f"{number:,}" for number in (self._unusual, self._scored, seen.short, seen.long)),
            )
        return unusual
