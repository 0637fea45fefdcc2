"""Words and sentences: their places in a text, and the sums of what their tokens contribute."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from apood.encoders.text.sentences import find_sentence_places

__all__ = ["Sentence", "Span", "find_owners", "find_sentences", "find_words", "sum_tokens"]

_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # written without spaces between words
_LONGEST = 64  # characters of a word; longer runs without a space are cut
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\s{_IDEOGRAPHS}]{{1,{_LONGEST}}}")


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


@dataclass(frozen=True)
class Sentence(Span):
    """A sentence, what its tokens contribute, and how suspicious it is by itself.

    Attributes:
        suspicion: how little it fits the other sentences, if the detector compares them. Otherwise the log distance of
            its own tokens (for a fusion minus their score), less that of pieces of the same text that are as long. 0 is
            usual.
    """

    suspicion: float = 0.0


S = TypeVar("S", bound=Span)


def find_words(text: str) -> list[Span]:
    """Return the words of a text: runs of other characters than white space, and ideographs one by one."""
    return [Span(*found.span()) for found in _WORD.finditer(text)]


def find_sentences(text: str) -> list[Sentence]:
    """Return the sentences of a text, which end in a full stop, an exclamation or question mark, or a line break."""
    return [Sentence(start, end) for start, end in find_sentence_places(text)]


def find_owners(text: str, spans: Sequence[Span], places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the number of the span to which each token belongs, the one where it begins; -1 for a token of none.

    Args:
        text: the text.
        spans: parts of the text in their order, which do not overlap.
        places: the start and end of each token in the text, `[tokens, 2]`; -1 for those that are not part of it.
    """
    starts = np.array([span.start for span in spans], dtype=np.int64)
    begins = []
    for start, end in places.tolist():
        token = text[start:end] if start >= 0 else ""
        begins.append(start + len(token) - len(token.lstrip()))  # some tokens begin with their space
    return np.searchsorted(starts, np.array(begins, dtype=np.int64), side="right") - 1


def sum_tokens(spans: Sequence[S], owners: npt.NDArray[np.int64], contributions: npt.NDArray[np.float64]) -> list[S]:
    """Return the spans with the contributions of their tokens.

    Args:
        spans: parts of a text.
        owners: the number of the span of each token, as `find_owners` returns them.
        contributions: one per token.
    """
    owned = owners >= 0
    sums = np.bincount(owners[owned], contributions[owned], len(spans)).tolist()
    counts = np.bincount(owners[owned], minlength=len(spans)).tolist()
    rows = zip(spans, sums, counts, strict=True)
    # A copy takes long, and a text can have a hundred thousand words without a token.
    return [replace(span, contribution=total, tokens=count) if count else span for span, total, count in rows]
