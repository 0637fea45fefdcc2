"""Pairs of texts as ids: the vocabulary that both languages share, its tokenizer files, and the training batches."""

import hashlib
import io
import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apood.backbones.training_loop import Batch
from apood.data.record import Pair
from apood.support.checks import check_integer, import_optional
from apood.support.errors import InputError

__all__ = [
    "EOS", "MULTIPLE", "PAD", "Batches", "Corpus", "Sentences", "decode_ids", "encode_texts", "pad_pairs",
    "train_vocabulary", "write_tokenizer",
]  # fmt: skip

EOS, UNKNOWN, PAD = 0, 1, 2
_THREADS = 16  # fixed, since the pieces depend on sums of floats, and these on how the work is split
_MOST_TEXTS = 200_000  # more texts hardly change the pieces, and take minutes
_ENCODED_AT_ONCE = 20_000
_WINDOW = 64  # pairs of this many batches are sorted by length together
MULTIPLE = 8  # padded lengths are multiples of it, for the fast kernels of a GPU


def train_vocabulary(texts: Sequence[str], size: int) -> bytes:
    """Return the content of a file with a unigram model of `size` pieces.

    It is learned from up to 200,000 evenly spaced texts. Every character in them has a piece.
    """
    check_integer("The size of the vocabulary", size, 8)
    sentencepiece = _import_sentencepiece()
    chosen = np.linspace(0, len(texts) - 1, min(len(texts), _MOST_TEXTS)).round().astype(np.int64).tolist()
    file = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([texts[i] for i in chosen]),
            model_writer=file,
            vocab_size=size,
            model_type="unigram",
            character_coverage=1.0,
            eos_id=EOS,
            unk_id=UNKNOWN,
            pad_id=PAD,
            bos_id=-1,
            num_threads=_THREADS,
            minloglevel=3,
        )
    except RuntimeError as error:
        raise InputError(
            f"A vocabulary of {size} pieces cannot be learned from these texts: {_explain(error)}."
        ) from error
    return file.getvalue()


def _explain(error: RuntimeError) -> str:
    """Return SentencePiece's reason without the place in its source code."""
    message = str(error)
    if found := re.search(r"Vocabulary size too high .*<= (\d+)", message):
        return f"they allow {found[1]} at most"
    if found := re.search(r"smaller than required_chars.* (\d+) vs (\d+)", message):
        return f"their characters alone need {max(int(found[1]), int(found[2]))}"
    return message.rsplit("] ", 1)[-1].strip().rstrip(".") or "they hold no words"


def encode_texts(vocabulary: bytes, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the ids of all texts one after the other, each with an end-of-sequence id, and their lengths."""
    processor = _import_sentencepiece().SentencePieceProcessor(model_proto=vocabulary)
    ids, lengths = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
    for start in range(0, len(texts), _ENCODED_AT_ONCE):
        encoded = processor.encode(list(texts[start : start + _ENCODED_AT_ONCE]), add_eos=True, num_threads=-1)
        lengths.append(np.fromiter(map(len, encoded), np.int64, len(encoded)))
        ids.append(np.fromiter(chain.from_iterable(encoded), np.int32, int(lengths[-1].sum())))
    return np.concatenate(ids), np.concatenate(lengths)


def decode_ids(vocabulary: bytes, ids: Sequence[Sequence[int]]) -> list[str]:
    """Return the texts of lists of ids."""
    processor = _import_sentencepiece().SentencePieceProcessor(model_proto=vocabulary)
    return [processor.decode(list(some)) for some in ids]


def write_tokenizer(vocabulary: bytes, folder: Path, context: int) -> None:
    """Write the files of a MarianTokenizer, which gives the same ids as `encode_texts`."""
    from transformers import MarianTokenizer

    processor = _import_sentencepiece().SentencePieceProcessor(model_proto=vocabulary)
    pieces = {processor.id_to_piece(i): i for i in range(processor.get_piece_size())}
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(pieces, ensure_ascii=False, indent=0), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")  # nothing here calls it
        MarianTokenizer(
            str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json"), model_max_length=context
        ).save_pretrained(folder)


def _import_sentencepiece() -> Any:
    return import_optional("sentencepiece", "train", "Training a translator")


@dataclass(frozen=True, eq=False)
class Sentences:
    """Token ids of many texts: those of text i are `ids[starts[i]:starts[i] + lengths[i]]`."""

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def encode(cls, vocabulary: bytes, texts: Sequence[str]) -> "Sentences":
        """Encode texts, each with an end-of-sequence id."""
        ids, lengths = encode_texts(vocabulary, texts)
        return cls(ids, np.cumsum(lengths) - lengths, lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def select(self, chosen: NDArray[np.int64]) -> "Sentences":
        """Return some of the texts, without a copy of their ids."""
        return Sentences(self.ids, self.starts[chosen], self.lengths[chosen])

    def pad(self, chosen: NDArray[np.int64]) -> Tensor:
        """Return the ids of some texts as int64 rows, padded to one length, a multiple of 8."""
        lengths = self.lengths[chosen]
        columns = np.arange(_round_up(lengths).max())
        inside = columns < lengths[:, None]
        places = np.where(inside, self.starts[chosen, None] + columns, 0)
        return torch.from_numpy(np.where(inside, self.ids[places], PAD).astype(np.int64))


@dataclass(frozen=True, eq=False)
class Corpus:
    """Sources and their targets.

    Attributes:
        sources: one side of the pairs.
        targets: the other side.
        kept: positions of these pairs among all pairs.
        empty: number of pairs left out because a side has no token.
        too_long: number of pairs left out because a side has too many tokens.
    """

    sources: Sentences
    targets: Sentences
    kept: NDArray[np.int64]
    empty: int
    too_long: int

    @classmethod
    def encode(cls, vocabulary: bytes, pairs: Sequence[Pair], context: int) -> "Corpus":
        """Encode pairs of texts. A side may have up to `context` ids, including the end-of-sequence id."""
        sources = Sentences.encode(vocabulary, [pair.source for pair in pairs])
        targets = Sentences.encode(vocabulary, [pair.target for pair in pairs])
        empty = np.minimum(sources.lengths, targets.lengths) < 2
        too_long = ~empty & (np.maximum(sources.lengths, targets.lengths) > context)
        kept = np.flatnonzero(~empty & ~too_long)
        return cls(sources.select(kept), targets.select(kept), kept, int(empty.sum()), int(too_long.sum()))

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def tokens(self) -> int:
        """The number of ids of both sides."""
        return int(self.sources.lengths.sum() + self.targets.lengths.sum())

    @property
    def longest(self) -> NDArray[np.int64]:
        """The length of the longer side of each pair."""
        return np.maximum(self.sources.lengths, self.targets.lengths)

    def exchange_sources(self) -> "Corpus":
        """Return each target with the source of the next longer pair, so that lengths reveal little."""
        order = np.argsort(self.longest, kind="stable")
        source_of = np.empty_like(order)
        source_of[order] = np.roll(order, -1)
        return replace(self, sources=self.sources.select(source_of))

    def digest(self) -> str:
        """Return a digest of the pairs and their order."""
        digest = hashlib.sha256()
        for side in (self.sources, self.targets):
            for part in (side.ids, side.starts, side.lengths):
                digest.update(part.tobytes())
        return digest.hexdigest()


def pad_pairs(corpus: Corpus, chosen: NDArray[np.int64]) -> Batch:
    """Return the sources, the targets and the inputs of the decoder of some pairs, as a batch."""
    sources, targets = corpus.sources.pad(chosen), corpus.targets.pad(chosen)
    given = targets.roll(1, dims=1)
    given[:, 0] = PAD  # Marian's decoder starts with it
    size = corpus.sources.lengths[chosen].sum() + corpus.targets.lengths[chosen].sum()
    return Batch({"sources": sources, "given": given, "targets": targets}, int(size))


class Batches:
    """The batches of a training by the number of the step.

    Each epoch shuffles all pairs, sorts them by length within windows, cuts them into batches of at most `batch_tokens`
    ids on the longer side, including padding, and shuffles the batches.
    """

    def __init__(self, corpus: Corpus, batch_tokens: int, seed: int) -> None:
        self._corpus, self._batch_tokens, self._seed = corpus, batch_tokens, seed
        self._longest = _round_up(corpus.longest)
        self._window = max(1, int(_WINDOW * batch_tokens / self._longest.mean()))
        self._start(0, 0)

    def _start(self, epoch: int, first: int) -> None:
        """Go to an epoch, whose first step has the number `first`."""
        self._epoch, self._first, self._planned = epoch, first, self.plan_epoch(epoch)

    def plan_epoch(self, number: int) -> list[NDArray[np.int64]]:
        """Return the pairs of every batch of an epoch."""
        dice = np.random.default_rng([self._seed, number])
        order = dice.permutation(len(self._corpus))
        batches = []
        for start in range(0, len(order), self._window):
            window = order[start : start + self._window]
            window = window[np.lexsort((self._corpus.sources.lengths[window], self._longest[window]))]
            batches += self._cut(window)
        return [batches[i] for i in dice.permutation(len(batches))]

    def _cut(self, window: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Cut as many pairs at a time as the budget holds. They are sorted, so the last of a batch is its longest."""
        batches = []
        while len(window):
            most = max(1, self._batch_tokens // int(self._longest[window[0]]))
            sizes = self._longest[window[:most]] * np.arange(1, min(most, len(window)) + 1)
            count = max(1, int(np.searchsorted(sizes, self._batch_tokens, side="right")))
            batches.append(window[:count])
            window = window[count:]
        return batches

    def __call__(self, step: int) -> Batch:
        """Return the batch of a step. Steps in order are cheap."""
        if step < self._first:
            self._start(0, 0)
        while step >= self._first + len(self._planned):
            self._start(self._epoch + 1, self._first + len(self._planned))
        return pad_pairs(self._corpus, self._planned[step - self._first])


def _round_up(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return -(-lengths // MULTIPLE) * MULTIPLE
