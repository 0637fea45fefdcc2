"""From a fitted detector and its encoder to explanations of texts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from apood.detectors.contract.base import Detector
from apood.detectors.shared.explanation import Explanation
from apood.encoders.opening import AnyTextEncoder
from apood.explain.spans import Span, find_sentences, find_words, sum_tokens
from apood.explain.text_explanation import HeadPart, MemberPart, TextExplanation
from apood.support.errors import InputError
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.documents import find_documents, number_documents

__all__ = ["Marks", "choose_marks", "explain_texts"]

_HEADS, _HEAD_WORDS = 3, 3  # heads that are named, and words of each
_TEXTS = 16  # explained at once, because the contributions of heads take much memory


class Marks(NamedTuple):
    """The contributions that words are marked by.

    Attributes:
        contributions: one per token.
        explained: the share of what speaks against each sequence that they explain, `[N]`.
        members: the numbers of the members of a fusion that they come from.
        heads: the contributions of tokens per head, if one member has heads.
    """

    contributions: Ragged
    explained: Tensor
    members: frozenset[int]
    heads: Ragged | None


def choose_marks(explanation: Explanation) -> Marks:
    """Return the contributions to mark words by: those of members with attention, or all if there is no such member.

    Every token moves a mean a little, so the contributions to a distance of means hardly tell where in a text a foreign
    sentence is. Those of attention tell more (benchmarks/EXPLAIN.md).
    """
    members = explanation.members
    known = [number for number, member in enumerate(members) if member.parts is not None]
    attending = [n for n in known if (parts := members[n].parts) is not None and parts.heads is not None]
    if not attending:
        return Marks(explanation.contributions, explanation.explained, frozenset(known), explanation.heads)
    rows = [own.values for n in attending if (own := members[n].contributions) is not None]
    first = members[attending[0]].parts
    heads = first.heads if first is not None and len(attending) == 1 else None
    contributions = Ragged(torch.stack(rows).sum(0), explanation.contributions.offsets)
    return Marks(contributions, explanation.find_explained(attending), frozenset(attending), heads)


def explain_texts(
    detector: Detector,
    encoder: AnyTextEncoder,
    texts: Sequence[str],
    *,
    describe_length: Callable[[int], str | None] | None = None,
) -> list[TextExplanation]:
    """Return why each text has its score.

    Args:
        detector: a fitted detector.
        encoder: the encoder that it was fitted with, in mode `input`.
        texts: the texts, none of them empty.
        describe_length: returns the note about a text of so many tokens, such as `Seen.describe_length`.
    """
    explanations: list[TextExplanation] = []
    for start in range(0, len(texts), _TEXTS):
        some = texts[start : start + _TEXTS]
        prepared = encoder.prepare(some)
        for number, problem in prepared.refused.items():
            raise InputError(f"The text at index {start + number} {problem}.")
        batch = encoder.run(prepared)
        windows = zip(number_documents(batch).tolist(), batch.lengths.tolist(), strict=True)
        for number in (number for number, length in windows if length == 0 or not some[number].strip()):
            raise InputError(f"The text at index {start + number} is empty, so there is nothing to explain.")
        explained = _ExplainedBatch(detector, batch, encoder.locate(some), prepared.cut)
        found = explained.describe(some)
        if describe_length is not None:
            counts = np.add.reduceat(batch.lengths.numpy(), find_documents(batch)).tolist()
            found = [replace(one, note=describe_length(count)) for one, count in zip(found, counts, strict=True)]
        explanations += found
    return explanations


class _ExplainedBatch:
    """The explanation of the windows of some texts."""

    def __init__(self, detector: Detector, batch: TokenBatch, places: Ragged, cut: frozenset[int]) -> None:
        self._detector, self._places, self._cut = detector, places, cut
        self._explanation = detector.explain(batch)
        self._marks = choose_marks(self._explanation)
        self._scores = detector._score_sequences(batch)
        self._starts = find_documents(batch).tolist()

    def describe(self, texts: Sequence[str]) -> list[TextExplanation]:
        """Return one explanation per text, that of its worst window."""
        stops = [*self._starts[1:], len(self._scores)]
        return [self._describe_text(*given) for given in zip(texts, self._starts, stops, strict=True)]

    def _describe_text(self, text: str, start: int, stop: int) -> TextExplanation:
        number = start + int(np.argmin(self._scores[start:stop]))
        score, places = self._scores[number], self._places.sequence(number).numpy()
        contributions = self._marks.contributions.sequence(number).numpy()
        placed, truncated = places[:, 0] >= 0, stop - 1 in self._cut
        window = (
            0 if number == start else int(places[placed, 0].min()),
            len(text) if number == stop - 1 and not truncated else int(places[placed, 1].max(initial=0)),
        )
        words, sentences = (
            [span for span in find(text) if span.end > window[0] and span.start < window[1]]
            for find in (find_words, find_sentences)
        )
        heads = self._marks.heads
        return TextExplanation(
            text=text,
            score=float(score),
            **self._decide(score),
            window=window,
            windows=stop - start,
            truncated=truncated,
            words=sum_tokens(text, words, places, contributions),
            sentences=sum_tokens(text, sentences, places, contributions),
            members=self._describe_members(number),
            explained=float(self._marks.explained[number]) * _find_placed_share(contributions, placed),
            heads=[] if heads is None else _describe_heads(text, words, places, heads.sequence(number)),
        )

    def _decide(self, score: float) -> dict[str, Any]:
        if not hasattr(self._detector, "threshold_"):
            return {"threshold": None, "p_value": None, "accepted": None}
        calibration = self._detector.calibration
        scores = np.array([score])
        return {
            "threshold": float(calibration.threshold),
            "p_value": float(calibration.p_values(scores)[0]),
            "accepted": bool(calibration.accepts(scores)[0]),
        }

    def _describe_members(self, number: int) -> list[MemberPart]:
        explanation, marks = self._explanation, self._marks
        if not explanation.members:
            share, neighbours = float(explanation.totals[number]), _list_neighbours(explanation, number)
            return [MemberPart(self._detector.name, share, True, neighbours)]
        return [
            MemberPart(
                member.name, float(member.share[number]), place in marks.members, _list_neighbours(member.parts, number)
            )
            for place, member in enumerate(explanation.members)
        ]


def _find_placed_share(contributions: npt.NDArray[np.float64], placed: npt.NDArray[np.bool_]) -> float:
    """Return the share of what speaks against a text that comes from tokens with a place in it, not special tokens."""
    against = contributions.clip(min=0)
    total = float(against.sum())
    return float(against[placed].sum()) / total if total > 0 else 1.0


def _list_neighbours(explanation: Explanation | None, number: int) -> tuple[int, ...]:
    if explanation is None or explanation.neighbours is None:
        return ()
    return tuple(explanation.neighbours[number].tolist())


def _describe_heads(text: str, words: list[Span], places: npt.NDArray[np.int64], heads: Tensor) -> list[HeadPart]:
    """Return the heads that contribute most to the distance, with the words that contribute most to each."""
    totals = heads.sum(0)
    distance = float(totals.sum())
    if distance <= 0:
        return []
    found = []
    for head in totals.argsort(descending=True)[:_HEADS].tolist():
        own = sorted(sum_tokens(text, words, places, heads[:, head].numpy()), key=lambda word: -word.contribution)
        top = tuple(word for word in own[:_HEAD_WORDS] if word.contribution > 0)
        found.append(HeadPart(head, float(totals[head]) / distance, top))
    return found
