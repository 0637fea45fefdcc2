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
from apood.explain.sentences import Ratings, compare_sentences, find_judge, rate_sentences
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
    """The window of a text that is shown.

    Attributes:
        text: the text.
        judged: the number in the batch of the window with the lowest score, that of the text.
        shown: the number in the batch of the window itself. It is another one if the sentences of the text decide, all
            of which are compared in the first window.
        windows: the number of windows of the text.
        truncated: whether only the beginning of the text was judged.
        place: start and end of the window in the text.
        places: start and end of each token.
        words: the words in the window.
        sentences: the sentences in the window.
        ratings: how little these sentences fit the others of the text; None if that is not known.
    """

    text: str
    judged: int
    shown: int
    windows: int
    truncated: bool
    place: tuple[int, int]
    places: npt.NDArray[np.int64]
    words: list[Span]
    sentences: list[Sentence]
    ratings: Ratings | None


class _ExplainedBatch:
    """The explanation of the windows of some texts."""

    def __init__(self, detector: Detector, batch: TokenBatch, places: Ragged, cut: frozenset[int]) -> None:
        self._detector, self._places, self._cut = detector, places, cut
        self._explanation = detector.explain(batch)
        self._marks = choose_marks(self._explanation)
        self._scores, self._batch = detector._score_sequences(batch), batch
        self._starts = find_documents(batch).tolist()
        self._judge = find_judge(detector)

    def describe(self, texts: Sequence[str]) -> list[TextExplanation]:
        """Return one explanation per text, that of the window that decides."""
        stops = [*self._starts[1:], len(self._scores)]
        chosen = [self._choose_window(*given) for given in zip(texts, self._starts, stops, strict=True)]
        owners = {own.shown: find_owners(own.text, own.sentences, own.places) for own in chosen}
        unrated = [own.shown for own in chosen if own.ratings is None and owners[own.shown].max(initial=0) > 0]
        rated = rate_sentences(self._detector, self._batch, {number: owners[number] for number in unrated})
        return [self._describe_window(own, owners[own.shown], rated.get(own.shown, own.ratings)) for own in chosen]

    def _choose_window(self, text: str, start: int, stop: int) -> _Window:
        """Return the window to show of a text, whose windows have the numbers from `start` to `stop`."""
        judged = start + int(np.argmin(self._scores[start:stop]))
        sentences = find_sentences(text)
        compared, shown = self._compare(text, sentences, start, stop)
        shown = judged if shown is None or judged != start else shown
        places = self._places.sequence(shown).numpy()
        placed, truncated = places[:, 0] >= 0, stop - 1 in self._cut
        begin = 0 if shown == start else int(places[placed, 0].min())
        end = len(text) if shown == stop - 1 and not truncated else int(places[placed, 1].max(initial=0))
        words = [word for word in find_words(text) if word.end > begin and word.start < end]
        inside = [number for number, one in enumerate(sentences) if one.end > begin and one.start < end]
        ratings = compared[inside[0] : inside[-1] + 1] if inside else compared[:0]
        return _Window(
            text=text,
            judged=judged,
            shown=shown,
            windows=stop - start,
            truncated=truncated,
            place=(begin, end),
            places=places,
            words=words,
            sentences=[sentences[number] for number in inside],
            ratings=ratings if len(ratings) and not np.isnan(ratings).any() else None,
        )

    def _compare(self, text: str, sentences: list[Sentence], start: int, stop: int) -> tuple[Ratings, int | None]:
        """Return how little the sentences of a text fit the others, and, if that decides, the window of the worst one.

        Sentences about which nothing is known have NaN, or are left out at the end.
        """
        if self._judge is None:
            return np.empty(0), None
        owners = [find_owners(text, sentences, self._places.sequence(n).numpy()) for n in range(start, stop)]
        compared = compare_sentences(self._judge, self._batch, start, owners)
        deciding = [member.name for member in self._explanation.members if member.share[start]]
        if deciding != [self._judge.name] or np.isnan(compared).any():
            return compared, None
        return compared, start + int(np.argmax([(own == compared.argmax()).sum() for own in owners]))

    def _describe_window(
        self, own: _Window, sentence_owners: npt.NDArray[np.int64], rated: Ratings | None
    ) -> TextExplanation:
        score = self._scores[own.judged]
        contributions, heads = self._marks.contributions.sequence(own.shown).numpy(), self._marks.heads
        if own.shown != own.judged:  # sentences decide, and no token adds to that
            contributions = np.zeros_like(contributions)
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
            members=self._describe_members(own.judged),
            explained=float(self._marks.explained[own.judged])
            * _find_placed_share(contributions, own.places[:, 0] >= 0),
            # heads of a member that did not decide say nothing
            heads=_describe_heads(own.words, word_owners, heads.sequence(own.shown))
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
        shares = [float(member.share[number]) for member in explanation.members]
        return [
            # a member that did not decide marks nothing
            MemberPart(
                member.name, share, place in marks.members and share != 0, _list_neighbours(member.parts, number)
            )
            for place, (member, share) in enumerate(zip(explanation.members, shares, strict=True))
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
