"""The sentences that all outputs share."""

from typing import NamedTuple

from apood.detectors.coherence import Coherence
from apood.explain.spans import Span
from apood.explain.text_explanation import TextExplanation

__all__ = [
    "MarkedWord", "describe_decision", "describe_explained", "describe_numbers", "describe_window",
    "name_worst_sentence", "shorten", "split_words",
]  # fmt: skip

_SHOWN = 6_000  # characters of a text; more would hide everything else
_SHORT = 160  # characters of a sentence that is quoted


class MarkedWord(NamedTuple):
    """A word of a text as it is shown.

    Attributes:
        before: the text between it and the word before.
        shown: its own text.
        word: its place and contribution.
        level: how strongly it is marked, from 0 to 3.
        in_worst: whether it belongs to the most suspicious sentence.
    """

    before: str
    shown: str
    word: Span
    level: int
    in_worst: bool


def split_words(explanation: TextExplanation, start: int, end: int) -> tuple[list[MarkedWord], str]:
    """Return the words of the text from `start` to `end`, and the text after the last of them."""
    text, place, found = explanation.text, start, []
    worst = explanation.find_worst_sentence()
    for word, level in zip(explanation.words, explanation.grade_words(), strict=True):
        if word.end > end:
            break
        begin = max(word.start, place)
        in_worst = worst is not None and worst.start <= word.start < worst.end
        found.append(MarkedWord(text[place:begin], text[begin : word.end], word, level, in_worst))
        place = word.end
    return found, text[place:end]


def describe_decision(explanation: TextExplanation) -> tuple[str, str]:
    """Return the decision, and its numbers with notes: only a beginning was judged, or the length is unusual."""
    judged = " Only the beginning of the text was judged." if explanation.truncated else ""
    judged += "" if explanation.note is None else f" {explanation.note}"
    if explanation.accepted is None or explanation.threshold is None:
        return "Not decided", f"score {explanation.score:.3g}; the detector is not calibrated.{judged}"
    numbers = f"score {explanation.score:.3g}, threshold {explanation.threshold:.3g}, p-value {explanation.p_value:.3g}"
    return "Accepted" if explanation.accepted else "Refused", f"{numbers}.{judged}"


def describe_explained(explanation: TextExplanation) -> str:
    """Return which part of the score the marks explain, and which member speaks most against the text."""
    members, marked = explanation.members, any(explanation.grade_words())
    by_sentences = [member.name for member in members if member.share] == [Coherence.name]
    unmarked = f"No word is marked{f': {Coherence.name} compares whole sentences' if by_sentences else ''}."
    if len(members) == 1:
        sees = (
            f"The marked words show what {members[0].name} sees; all words make up {explanation.explained:.0%} of its"
        )
        return f"{sees} distance." if marked else unmarked
    if max(member.share for member in members) <= 0:
        none = "No member speaks against this text"
        return f"{none}; the marks show the least ordinary words." if marked else f"{none}. {unmarked}"
    most = f"{explanation.decided} speaks most against this text."
    names = ", ".join(member.name for member in members if member.marked)
    explained = f"The marks show what {names} sees, {explanation.explained:.0%} of all that speaks against it."
    return f"{most} {explained if marked else unmarked}"


def describe_numbers(explanation: TextExplanation) -> str:
    """Return what the numbers of the nearest training sequences count; nothing if there are none, or their texts."""
    members = explanation.members
    if explanation.list_neighbours() or not any(member.neighbours for member in members):
        return ""
    return "The numbers count, from 0, the sequences that the detector learnt from (windows of long texts)."


def name_worst_sentence(explanation: TextExplanation) -> str:
    """Return what the most suspicious sentence is called: in a text that is accepted, it need not be suspicious."""
    return "Least ordinary sentence" if explanation.accepted else "Most suspicious sentence"


def describe_window(explanation: TextExplanation) -> tuple[int, int, str, str]:
    """Return start and end of the text to show, and notes about what is left out before and after it."""
    start, end = explanation.window
    end = min(end, start + _SHOWN)
    before = f"⟨{start:,} characters before the part that was judged worst⟩ " if start else ""
    left = len(explanation.text) - end
    unseen = ", not judged" if explanation.truncated and end == explanation.window[1] else ""
    return start, end, before, f" ⟨{left:,} more characters{unseen}⟩" if left else ""


def shorten(text: str) -> str:
    """Return the text, or its beginning if it is long."""
    return text if len(text) <= _SHORT else text[: _SHORT - 1] + "…"
