"""`TextExplanation`: why a text has its score, as data that terminals, pages and programs show."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import RenderableType

from apood.explain.spans import Sentence, Span
from apood.support.files import replace_nonfinite

__all__ = ["HeadPart", "MemberPart", "TextExplanation"]

_LEVELS = (0.25, 0.5, 0.75)  # shares of the contribution of the most suspicious word, from which a word is marked


@dataclass(frozen=True)
class MemberPart:
    """What one member of a fusion says about a text.

    Attributes:
        name: the name of the member.
        share: what it adds to minus the score; positive speaks against the text.
        marked: whether its contributions are those of the marks; not if it adds 0.
        neighbours: the numbers of the nearest training sequences, nearest first; empty if the member has none.
        neighbour_texts: their texts; empty unless they were asked for, because they are training data.
    """

    name: str
    share: float
    marked: bool
    neighbours: tuple[int, ...] = ()
    neighbour_texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class HeadPart:
    """What one head of AP-OOD adds to the distance of a text.

    Attributes:
        number: the number of the head.
        share: its share in the distance, from 0 to 1.
        words: the words that contribute most to it.
    """

    number: int
    share: float
    words: tuple[Span, ...]


@dataclass(frozen=True)
class TextExplanation:
    """Why a text has its score.

    In a notebook it shows the text with its marks. `print` and `rich.print` show it on a terminal.

    Attributes:
        text: the text.
        score: its score; higher is more in-distribution.
        threshold: the lowest score that is accepted; None without a calibration.
        p_value: its conformal p-value; None without a calibration.
        accepted: whether it is accepted; None without a calibration.
        window: start and end of the part of the text that is explained: the whole text, its worst window, the window
            with the sentence that fits least if this decides, or the beginning that was judged.
        windows: the number of windows of the text.
        words: the words in the window, with their contributions.
        sentences: the sentences in the window, with their contributions and how suspicious each is by itself.
        members: what each member says; a detector that is not a fusion is its own only member.
        explained: the share of what speaks against the text that the marks explain, from 0 to 1. Special tokens have no
            place in the text, so that their share has no marks.
        heads: the heads of AP-OOD that contribute most.
        truncated: whether only the beginning of the text was judged, because the encoder cuts long texts.
        note: a sentence about a text of unusual length, which may have its score for that reason; else None.
    """

    text: str
    score: float
    threshold: float | None
    p_value: float | None
    accepted: bool | None
    window: tuple[int, int]
    windows: int
    words: Sequence[Span]
    sentences: Sequence[Sentence]
    members: Sequence[MemberPart]
    explained: float
    heads: Sequence[HeadPart] = ()
    truncated: bool = False
    note: str | None = None

    @property
    def decided(self) -> str:
        """The name of the member that speaks most against the text."""
        # in a fusion with `sentences`, members that do not decide have a share of 0
        deciding = [member for member in self.members if member.share] or self.members
        return max(deciding, key=lambda member: member.share).name

    def grade_words(self) -> list[int]:
        """Return how strongly each word is marked, from 0 (not at all) to 3, relative to the most suspicious word.

        In a text that is accepted, marks are faint: 1 at most.
        """
        largest = max((word.contribution for word in self.words), default=0.0)
        levels = [sum(word.contribution >= share * largest > 0 for share in _LEVELS) for word in self.words]
        return [min(level, 1) for level in levels] if self.accepted else levels

    def list_neighbours(self) -> dict[int, str]:
        """Return the texts of the nearest training sequences by their numbers, if they were asked for."""
        return {
            number: text
            for member in self.members
            for number, text in zip(member.neighbours, member.neighbour_texts, strict=False)
        }

    def cut(self, span: Span) -> str:
        """Return the part of the text that a span is."""
        return self.text[span.start : span.end]

    def rank_sentences(self) -> list[Sentence]:
        """Return the sentences that have tokens, the most suspicious first."""
        return sorted((one for one in self.sentences if one.tokens), key=lambda one: -one.suspicion)

    def find_worst_sentence(self) -> Sentence | None:
        """Return the most suspicious sentence; None if there is only one."""
        ranked = self.rank_sentences()
        return ranked[0] if len(ranked) > 1 else None

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as JSON values, null for an infinite number; places count characters of the text."""
        content = {
            "text": self.text,
            "score": self.score,
            "threshold": self.threshold,
            "p_value": self.p_value,
            "accepted": self.accepted,
            "decided": self.decided,
            "explained": self.explained,
            "window": self.window,
            "windows": self.windows,
            "truncated": self.truncated,
            "note": self.note,
            "members": [asdict(member) for member in self.members],
            "words": [asdict(word) for word in self.words],
            "sentences": [asdict(sentence) for sentence in self.sentences],
            "heads": [asdict(head) for head in self.heads],
        }
        values: dict[str, Any] = replace_nonfinite(content)
        return values

    def to_html(self) -> str:
        """Return a whole page that needs no network and runs no script."""
        from apood.explain.html import render_page  # here, because it imports this module

        return render_page([self])

    def _repr_html_(self) -> str:
        from apood.explain.html import render_fragment

        return render_fragment(self)

    def __rich__(self) -> RenderableType:
        from apood.explain.terminal import render_explanation

        return render_explanation(self)

    def __str__(self) -> str:
        from apood.explain.terminal import format_plain

        return format_plain(self)
