"""Long texts: what to do with a text that has more tokens than the encoder takes."""

import math
from typing import Literal, NamedTuple, TypeVar

from torch import Tensor

from apood.tokens.batch import Ragged

__all__ = ["MOST_WINDOWS", "Documents", "OnLong", "cut_windows", "find_long_problem"]

T = TypeVar("T")

OnLong = Literal["windows", "refuse", "beginning"]
"""How to treat a long text: as overlapping windows, as an input that cannot be used, or as its beginning alone."""

MOST_WINDOWS = 64
"""The largest number of windows of one text. A longer text is refused, so that it cannot hold the model for long."""

_OVERLAP = 4  # neighbours share a quarter of a full window, so that what one cuts apart is whole in the other


class Documents(NamedTuple):
    """The token ids of texts.

    Attributes:
        ids: the ids of all windows (int32), text by text.
        counts: the number of windows of each text, 0 if it was refused.
        cut: the indices of texts of which only the beginning was taken.
        refused: what is wrong with the texts that were refused, by their indices, as in "has 900 tokens, ...".
    """

    ids: Ragged
    counts: Tensor
    cut: list[int]
    refused: dict[int, str]


def cut_windows(row: list[T], head: int, tail: int, limit: int) -> list[list[T]]:
    """Return the ids of a long text in windows of equal length, at most `limit` ids, which cover the text evenly.

    A row may also hold another property of the tokens than their ids. The first `head` ids and the last `tail` ids,
    special tokens and the template, are in every window. There are as few windows as possible. Full ones could only end
    with the text by repeating nearly all of the window before it.
    """
    room, stop = limit - head - tail, len(row) - tail
    count = _count_windows(stop - head, room)
    length = math.ceil((stop - head + (count - 1) * (room // _OVERLAP)) / count)
    starts = [head + number * (stop - head - length) // (count - 1) for number in range(count)]
    return [row[:head] + row[start : start + length] + row[stop:] for start in starts]


def find_long_problem(tokens: int, frame: int, limit: int, on_long: OnLong) -> str | None:
    """Return why a text of more than `limit` tokens is refused; None if it can be cut into windows.

    `frame` is the number of special tokens and tokens of the template, which are in every window.
    """
    if on_long == "refuse":
        return f"has {tokens:,} tokens, and a text of more than max_tokens={limit:,} is refused"
    room = limit - frame
    if room < 1:
        return f"has {tokens:,} tokens, and max_tokens={limit:,} leaves no room for it beside the template"
    windows = _count_windows(tokens - frame, room)
    if windows > MOST_WINDOWS:
        return (
            f"has {tokens:,} tokens, which need {windows:,} windows of {limit:,} tokens, more than the limit of "
            f"{MOST_WINDOWS} windows per text"
        )
    return None


def _count_windows(tokens: int, room: int) -> int:
    return 1 + math.ceil((tokens - room) / (room - room // _OVERLAP))
