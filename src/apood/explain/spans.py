"""Words and sentences: their places in a text, and the sums of what their tokens contribute."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Span", "find_sentences", "find_words", "sum_tokens"]

_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # written without spaces between words
_LONGEST = 64  # characters of a word; longer runs without a space are cut
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\s{_IDEOGRAPHS}]{{1,{_LONGEST}}}")
_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[.!?…][\"'”’)\]])\s+|(?<=[。！？])|\s*\n\s*")


@dataclass(frozen=True)
class Span:
    """A part of a text and what its tokens contribute.

    Attributes:
        start: the place of its first character.
        end: the place after its last character.
        contribution: the sum over its tokens; positive if it makes the text look out-of-distribution.
        tokens: the number of its tokens.
    """

    start: int
    end: int
    contribution: float = 0.0
    tokens: int = 0

    @property
    def mean(self) -> float:
        """The contribution per token, by which sentences of different lengths are compared; 0 without tokens."""
        return self.contribution / max(self.tokens, 1)


def find_words(text: str) -> list[Span]:
    """Return the words of a text: runs of other characters than white space, and ideographs one by one."""
    return [Span(*found.span()) for found in _WORD.finditer(text)]


def find_sentences(text: str) -> list[Span]:
    """Return the sentences of a text, which end in a full stop, an exclamation or question mark, or a line break."""
    breaks = [found.span() for found in _SENTENCE_END.finditer(text)]
    starts, ends = [0, *(end for _, end in breaks)], [*(start for start, _ in breaks), len(text)]
    return [Span(start, end) for start, end in zip(starts, ends, strict=True) if text[start:end].strip()]


def sum_tokens(
    text: str, spans: Sequence[Span], places: npt.NDArray[np.int64], contributions: npt.NDArray[np.float64]
) -> list[Span]:
    """Return the spans with the contributions of their tokens; a token belongs to the span where it begins.

    Args:
        text: the text.
        spans: parts of the text in their order, which do not overlap.
        places: the start and end of each token in the text, `[tokens, 2]`; -1 for those that are no part of it.
        contributions: one per token.
    """
    starts = np.array([span.start for span in spans], dtype=np.int64)
    sums, counts = np.zeros(len(spans)), np.zeros(len(spans), dtype=np.int64)
    for (start, end), contribution in zip(places.tolist(), contributions.tolist(), strict=True):
        if start < 0:
            continue
        begin = start + len(text[start:end]) - len(text[start:end].lstrip())  # some tokens begin with their space
        owner = int(np.searchsorted(starts, begin, side="right")) - 1
        if owner >= 0:
            sums[owner] += contribution
            counts[owner] += 1
    rows = zip(spans, sums.tolist(), counts.tolist(), strict=True)
    return [Span(span.start, span.end, total, count) for span, total, count in rows]
