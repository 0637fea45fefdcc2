"""ID sequences that a detector has not seen, and its scores of them, to which a fusion compares new scores."""

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from apood.detectors.contract.base import Detector
from apood.fitting.optimise import Checkpoint
from apood.support.errors import DataWarning, InputError
from apood.tokens.documents import count_documents, number_documents
from apood.tokens.source import Beginnings, Subset, TokenSource, split, spread_evenly

__all__ = [
    "HELD_OUT_SHARE",
    "LEAST_HELD_OUT",
    "HeldOut",
    "Unseen",
    "count_held_out",
    "draw_left_out",
    "fit_member",
    "hold_out",
]

HELD_OUT_SHARE = 0.1
"""Share of the ID sequences that is held out, if there are not too few or too many."""

LEAST_HELD_OUT = 20
"""Fewer sequences are too few for a mean and a standard deviation."""

_MOST_HELD_OUT = 2048  # more would not make a scale or a law of the length much better
_LEFT_OUT = 4096  # most training sequences that a member scores as if it had not seen them
_LONG = 32  # tokens of a sequence whose beginnings tell something about short sequences
_SHORTEST = 4  # tokens of a beginning
_GOLDEN = 0.6180339887498949  # multiples of it, without their whole part, are spread evenly


class HeldOut(NamedTuple):
    """The ID sequences of a fit in parts.

    Attributes:
        source: all ID sequences.
        rest: those to fit on.
        held_out: the others, with all windows of their documents.
        left_out: the numbers of the sequences to score if a member can leave out sequences that it was fitted on.
        beginnings: beginnings of the sequences held out; None if short sequences are nothing to learn about.
    """

    source: TokenSource
    rest: Subset
    held_out: Subset
    left_out: Tensor
    beginnings: TokenSource | None


def count_held_out(sequences: int) -> int:
    """Return about how many of so many ID sequences are held out."""
    return max(LEAST_HELD_OUT, min(_MOST_HELD_OUT, round(HELD_OUT_SHARE * sequences)))


def hold_out(source: TokenSource, seed: int, *, beginnings: bool, whole_texts: bool) -> HeldOut:
    """Return the ID sequences in parts.

    Args:
        source: the ID sequences.
        seed: seed of the split.
        beginnings: whether beginnings of those held out are needed.
        whole_texts: whether a member scores documents as a whole, so that windows of a few documents are not enough.
    """
    documents = count_documents(source)
    least = LEAST_HELD_OUT if whole_texts else 1
    count = max(least, round(count_held_out(len(source)) * documents / len(source)))
    rest, held = split(source, count / documents, seed)
    while len(held) < LEAST_HELD_OUT:  # the documents that were drawn have few windows
        count += 1
        rest, held = split(source, count / documents, seed)
    left = count_documents(rest) if whole_texts else len(rest)
    if left < LEAST_HELD_OUT:
        what = "documents" if whole_texts else "sequences, as whole documents"
        raise InputError(
            f"The {len(source)} ID sequences are windows of {documents} documents. A fusion holds out at least "
            f"{LEAST_HELD_OUT} {what}, which leaves {left} to learn from, and it needs {LEAST_HELD_OUT}; give more "
            "documents, or fit one of its members alone instead."
        )
    left_out = draw_left_out(len(source), held.indices)
    return HeldOut(source, rest, held, left_out, _draw_beginnings(held) if beginnings else None)


def draw_left_out(count: int, held_out: Tensor | None = None) -> Tensor:
    """Return the training sequences that members score as if they had not seen them: those held out, and others."""
    chosen = torch.zeros(count, dtype=torch.bool)
    if held_out is not None:
        chosen[held_out] = True
    chosen[spread_evenly(count, _LEFT_OUT)] = True
    return chosen.nonzero().flatten()


def _draw_beginnings(held_out: Subset) -> TokenSource | None:
    """Return a beginning of each sequence; their lengths are spread evenly on a logarithmic scale."""
    if float(held_out.lengths.double().median()) < _LONG:
        warnings.warn(
            f"beginnings=True changes nothing: most ID sequences have fewer than {_LONG} tokens, so short ones are "
            "usual, and what is usual for them is learnt anyway.",
            DataWarning,
            stacklevel=5,
        )
        return None
    shares = (torch.arange(len(held_out), dtype=torch.float64) * _GOLDEN).frac()
    whole = held_out.lengths.double()
    shortest = whole.clamp_max(_SHORTEST)
    return Beginnings(held_out, (shortest * (whole / shortest) ** shares).round().long())


class Unseen(NamedTuple):
    """Scores of ID sequences that a member has not seen.

    Attributes:
        scores: the scores.
        numbers: the places of the sequences among all ID sequences.
        copied: whether they have near copies, which the member has not seen either; None if it does not know.
        beginnings: scores of the beginnings of the sequences held out; None if there are none.
    """

    scores: Tensor
    numbers: Tensor
    copied: Tensor | None
    beginnings: Tensor | None

    def get_scores(self, numbers: Tensor) -> Tensor:
        """Return the scores of the sequences at these places among all ID sequences."""
        places = torch.full((int(self.numbers.max()) + 1,), -1)
        places[self.numbers] = torch.arange(len(self.numbers))
        return self.scores[places[numbers]]

    def find_new(self, copied: Tensor) -> Tensor:
        """Return which scores are like those of new sequences, given which of all ID sequences have near copies."""
        if self.copied is not None:
            return torch.ones(len(self.scores), dtype=torch.bool)
        new = ~copied[self.numbers]
        # if nearly all have copies, their scores are better than none
        return new if int(new.sum()) >= LEAST_HELD_OUT else torch.ones_like(new)


def fit_member(member: Detector, parts: HeldOut, aux: TokenSource | None, checkpoint: Checkpoint | None) -> Unseen:
    """Fit a member, and return scores of sequences that it has not seen.

    Args:
        member: the detector to fit.
        parts: the ID sequences.
        aux: AUX sequences, for members that need them. Others do not learn from them, so that their scores of AUX
            sequences show how well they tell foreign sequences of any kind.
        checkpoint: where a long fit saves its state.
    """
    leaves_out = type(member).score_training is not Detector.score_training
    used = aux if member.aux == "required" else None
    member.fit(parts.source if leaves_out else parts.rest, aux=used, checkpoint=checkpoint)
    documents = torch.from_numpy(number_documents(parts.source))
    held = parts.held_out.indices
    own = member.score_training(parts.left_out, documents)
    begun = None
    if own is not None:
        if parts.beginnings is not None:
            found = member.score_training(held, documents, parts.beginnings)
            begun = None if found is None else found.scores
        return Unseen(own.scores, parts.left_out, own.copied, begun)
    if parts.beginnings is not None:
        begun = torch.from_numpy(member._score_sequences(parts.beginnings))
    return Unseen(torch.from_numpy(member._score_sequences(parts.held_out)), held, None, begun)
