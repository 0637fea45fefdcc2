"""The texts that a detector was given: how many, how long they were, and when."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Self

import numpy as np

from apood.tokens.documents import find_documents
from apood.tokens.source import TokenSource

__all__ = ["MOST_UNUSUAL", "Seen", "count_tokens"]

MOST_UNUSUAL = 0.1
"""The share of texts of unusual length that is tolerated; by definition it is 0.02 in the same data."""

_RARE = 0.01  # the share of texts on either side that count as short or long


@dataclass(frozen=True)
class Seen:
    """The texts of a fit or a calibration, in numbers.

    Attributes:
        documents: the number of texts.
        sequences: the number of their sequences, more than texts if long ones have windows.
        tokens: the number of their tokens.
        short: one percent of the texts have fewer tokens.
        long: one percent of the texts have more tokens.
        date: the time in UTC, in ISO format.
    """

    documents: int
    sequences: int
    tokens: int
    short: int
    long: int
    date: str

    @classmethod
    def of(cls, source: TokenSource) -> Self:
        """Return the numbers of the texts in a source, with the present time."""
        tokens = count_tokens(source)
        short, long = np.quantile(tokens, [_RARE, 1 - _RARE], method="nearest").tolist()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(len(tokens), len(source), int(tokens.sum()), int(short), int(long), now)

    @classmethod
    def from_json(cls, stored: Any) -> Self:
        """Return what `to_json` wrote; raise TypeError if it is something else."""
        seen = cls(**stored)
        numbers = (seen.documents, seen.sequences, seen.tokens, seen.short, seen.long)
        if not all(isinstance(number, int) and number >= 0 for number in numbers) or not isinstance(seen.date, str):
            raise TypeError(f"{stored!r:.200} are not counts of texts")
        return seen

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as JSON."""
        return asdict(self)

    def is_usual(self, tokens: int) -> bool:
        """Return whether a text with this number of tokens is neither shorter nor longer than 99% of the texts."""
        return self.short <= tokens <= self.long

    def describe_length(self, tokens: int) -> str | None:
        """Return a sentence if a text with this number of tokens is unusually short or long, else None."""
        if tokens < self.short:
            return f"It is shorter than 99% of the texts that the detector learnt from ({self.short:,} tokens)."
        if tokens > self.long:
            return f"It is longer than 99% of the texts that the detector learnt from ({self.long:,} tokens)."
        return None


def count_tokens(source: TokenSource) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return the number of tokens of each document, in all of its windows."""
    starts = find_documents(source)
    return np.add.reduceat(source.lengths.numpy(), starts) if len(starts) else starts
