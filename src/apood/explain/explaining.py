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
from apood.explain.sentences import rate_sentences
from apood.explain.spans import Sentence, Span, find_owners, find_sentences, find_words, sum_tokens
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
        describe_length: returns the note about a text with a number of tokens, such as `Seen.describe_length`.
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


class _Window(NamedTuple):
    """The window of a text that decides.

    Attributes:
        text: the text.
        number: the number of the window in the batch.
        windows: the number of windows of the text.
        truncated: whether only the beginning of the text was judged.
        place: start and end of the window in the text.
        places: start and end of each token.
        words: the words in the window.
        sentences: the sentences in the window.
    """

    text: str
    number: int
    windows: int
    truncated: bool
    place: tuple[int, int]
    places: npt.NDArray[np.int64]
    words: list[Span]
    sentences: list[Sentence]


class _ExplainedBatch:
    """The explanation of the windows of some texts."""

    def __init__(self, detector: Detector, batch: TokenBatch, places: Ragged, cut: frozenset[int]) -> None:
        self._detector, self._places, self._cut = detector, places, cut
        self._explanation = detector.explain(batch)
        self._marks = choose_marks(self._explanation)
        self._scores, self._batch = detector._score_sequences(batch), batch
        self._starts = find_documents(batch).tolist()

    def describe(self, texts: Sequence[str]) -> list[TextExplanation]:
        """Return one explanation per text, that of its worst window."""
        stops = [*self._starts[1:], len(self._scores)]
        chosen = [self._choose_window(*given) for given in zip(texts, self._starts, stops, strict=True)]
        owners = {own.number: find_owners(own.text, own.sentences, own.places) for own in chosen}
        several = {number: own for number, own in owners.items() if own.max(initial=0) > 0}
        rated = rate_sentences(self._detector, self._batch, several)
        return [self._describe_window(own, owners[own.number], rated.get(own.number)) for own in chosen]

    def _choose_window(self, text: str, start: int, stop: int) -> _Window:
        """Return the worst window of a text, whose windows have the numbers from `start` to `stop`."""
        number = start + int(np.argmin(self._scores[start:stop]))
        places = self._places.sequence(number).numpy()
        placed, truncated = places[:, 0] >= 0, stop - 1 in self._cut
        begin = 0 if number == start else int(places[placed, 0].min())
        end = len(text) if number == stop - 1 and not truncated else int(places[placed, 1].max(initial=0))
        words = [word for word in find_words(text) if word.end > begin and word.start < end]
        sentences = [one for one in find_sentences(text) if one.end > begin and one.start < end]
        return _Window(text, number, stop - start, truncated, (begin, end), places, words, sentences)

    def _describe_window(
        self, own: _Window, sentence_owners: npt.NDArray[np.int64], rated: npt.NDArray[np.float64] | None
    ) -> TextExplanation:
        number, score = own.number, self._scores[own.number]
        contributions, heads = self._marks.contributions.sequence(number).numpy(), self._marks.heads
        word_owners = find_owners(own.text, own.words, own.places)
        sentences = sum_tokens(own.sentences, sentence_owners, contributions)
        return TextExplanation(
            text=own.text,
            score=float(score),
            **self._decide(score),
            window=own.place,
            windows=own.windows,
            truncated=own.truncated,
            words=sum_tokens(own.words, word_owners, contributions),
            sentences=_add_suspicions(sentences, rated),
            members=self._describe_members(number),
            explained=float(self._marks.explained[number]) * _find_placed_share(contributions, own.places[:, 0] >= 0),
            # heads of a member that did not decide say nothing
            heads=_describe_heads(own.words, word_owners, heads.sequence(number))
            if heads is not None and contributions.any()
            else [],
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


def _add_suspicions(sentences: list[Sentence], rated: npt.NDArray[np.float64] | None) -> list[Sentence]:
    """Return the sentences with how suspicious they are: 0 where nothing is known."""
    known = [] if rated is None else np.nan_to_num(rated).tolist()
    known += [0.0] * (len(sentences) - len(known))
    return [replace(one, suspicion=suspicion) for one, suspicion in zip(sentences, known, strict=True)]


def _describe_heads(words: list[Span], owners: npt.NDArray[np.int64], heads: Tensor) -> list[HeadPart]:
    """Return the heads that contribute most to the distance, with the words that contribute most to each."""
    totals = heads.sum(0)
    distance = float(totals.sum())
    if distance <= 0:
        return []
    found = []
    for head in totals.argsort(descending=True)[:_HEADS].tolist():
        own = sorted(sum_tokens(words, owners, heads[:, head].numpy()), key=lambda word: -word.contribution)
        top = tuple(word for word in own[:_HEAD_WORDS] if word.contribution > 0)
        found.append(HeadPart(head, float(totals[head]) / distance, top))
    return found
