"""Pairs of texts as ids, and the batches of a training made of them: each pair once an epoch, with little padding."""

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apood.backbones.training_loop import Batch
from apood.backbones.vocabulary import PAD, encode_texts

__all__ = ["MULTIPLE", "Batches", "Corpus", "Sentences", "padded_pairs"]

_WINDOW = 64  # batches' worth of pairs that are sorted by length together
MULTIPLE = 8  # lengths that the fast kernels of a GPU like


@dataclass(frozen=True, eq=False)
class Sentences:
    """Token ids of many texts: those of text i are `ids[starts[i]:starts[i] + lengths[i]]`."""

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, vocabulary: bytes, texts: list[str]) -> "Sentences":
        """Encodes `texts`, each with an end-of-sequence id."""
        ids, lengths = encode_texts(vocabulary, texts)
        return cls(ids, np.cumsum(lengths) - lengths, lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def select(self, chosen: NDArray[np.int64]) -> "Sentences":
        """Some of the texts, without a copy of their ids."""
        return Sentences(self.ids, self.starts[chosen], self.lengths[chosen])

    def padded(self, chosen: NDArray[np.int64]) -> Tensor:
        """The ids of some texts as int64 rows of one length, a multiple of 8, filled up with padding."""
        lengths = self.lengths[chosen]
        columns = np.arange(_rounded(lengths).max())
        inside = columns < lengths[:, None]
        places = np.where(inside, self.starts[chosen, None] + columns, 0)
        return torch.from_numpy(np.where(inside, self.ids[places], PAD).astype(np.int64))


@dataclass(frozen=True, eq=False)
class Corpus:
    """Sources and their targets.

    Attributes:
        sources: one side of the pairs.
        targets: the other.
        kept: their positions among the pairs given.
        empty: how many pairs were left out because a side has no token.
        too_long: how many were left out because a side has too many.
    """

    sources: Sentences
    targets: Sentences
    kept: NDArray[np.int64]
    empty: int
    too_long: int

    @classmethod
    def of(cls, vocabulary: bytes, sources: list[str], targets: list[str], context: int) -> "Corpus":
        """Encodes pairs of texts; a side may have up to `context` ids, the end-of-sequence id among them."""
        both = Sentences.of(vocabulary, sources), Sentences.of(vocabulary, targets)
        shorter = np.minimum(both[0].lengths, both[1].lengths)
        longer = np.maximum(both[0].lengths, both[1].lengths)
        empty, too_long = shorter < 2, longer > context
        usable = np.flatnonzero(~empty & ~too_long)
        return cls(
            both[0].select(usable), both[1].select(usable), usable, int(empty.sum()), int((too_long & ~empty).sum())
        )

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def tokens(self) -> int:
        """The ids of both sides."""
        return int(self.sources.lengths.sum() + self.targets.lengths.sum())

    @property
    def longest(self) -> NDArray[np.int64]:
        """The length of the longer side of each pair."""
        return np.maximum(self.sources.lengths, self.targets.lengths)

    def exchanged(self) -> "Corpus":
        """Each target with the source of another pair, the next longer one, so that lengths give little away."""
        order = np.argsort(self.longest, kind="stable")
        source_of = np.empty_like(order)
        source_of[order] = np.roll(order, -1)
        return replace(self, sources=self.sources.select(source_of))

    def digest(self) -> str:
        """The same for the same pairs in the same order."""
        digest = hashlib.sha256()
        for side in (self.sources, self.targets):
            for part in (side.ids, side.starts, side.lengths):
                digest.update(part.tobytes())
        return digest.hexdigest()


def padded_pairs(corpus: Corpus, chosen: NDArray[np.int64]) -> Batch:
    """What a model takes to be held to the targets of some pairs; its size counts the ids of both sides."""
    sources, targets = corpus.sources.padded(chosen), corpus.targets.padded(chosen)
    given = targets.roll(1, dims=1)
    given[:, 0] = PAD  # what Marian's decoder starts with
    size = corpus.sources.lengths[chosen].sum() + corpus.targets.lengths[chosen].sum()
    return Batch({"sources": sources, "given": given, "targets": targets}, int(size))


class Batches:
    """The batches of a training, by the number of the step.

    An epoch shuffles all pairs, sorts them by length within windows, cuts them into batches of at most `batch_tokens`
    ids on the longer side, padding included, and shuffles the batches.
    """

    def __init__(self, corpus: Corpus, batch_tokens: int, seed: int) -> None:
        self._corpus, self._batch_tokens, self._seed = corpus, batch_tokens, seed
        self._longest = _rounded(corpus.longest)
        self._window = max(1, int(_WINDOW * batch_tokens / self._longest.mean()))
        self._epoch, self._first = 0, 0
        self._planned = self.epoch(0)

    def epoch(self, number: int) -> list[NDArray[np.int64]]:
        """The pairs of every batch of an epoch."""
        dice = np.random.default_rng([self._seed, number])
        order = dice.permutation(len(self._corpus))
        batches = []
        for start in range(0, len(order), self._window):
            window = order[start : start + self._window]
            window = window[np.lexsort((self._corpus.sources.lengths[window], self._longest[window]))]
            batches += self._cut(window)
        return [batches[i] for i in dice.permutation(len(batches))]

    def _cut(self, window: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """As many pairs at a time as the budget holds; the last of a batch, in order of length, is its longest."""
        batches = []
        while len(window):
            most = max(1, self._batch_tokens // int(self._longest[window[0]]))
            sizes = self._longest[window[:most]] * np.arange(1, min(most, len(window)) + 1)
            count = max(1, int(np.searchsorted(sizes, self._batch_tokens, side="right")))
            batches.append(window[:count])
            window = window[count:]
        return batches

    def __call__(self, step: int) -> Batch:
        """The batch of a step; cheap for steps in order."""
        if step < self._first:
            self._epoch, self._first = 0, 0
            self._planned = self.epoch(0)
        while step >= self._first + len(self._planned):
            self._first += len(self._planned)
            self._epoch += 1
            self._planned = self.epoch(self._epoch)
        return padded_pairs(self._corpus, self._planned[step - self._first])


def _rounded(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return -(-lengths // MULTIPLE) * MULTIPLE
