"""Sentences of texts: where they are, and one vector of each that knows nothing of its surroundings."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Self

import torch
from torch import Tensor, nn

from apood.encoders.text.tokenising import Tokeniser
from apood.encoders.text.windows import Documents
from apood.tokens.batch import Ragged, list_run_rows, upload

__all__ = ["TextSentences", "embed_sentences", "find_sentence_places", "read_sentences"]

# A line break is looked for from the start of white space only: from every space, a long run would take quadratic time.
_END = re.compile(
    r"(?<=[.!?…])\s+|(?<=[.!?…][\"'”’)\]])\s+|(?<=[。！？])(?![。！？…”’」』）】])|(?<=[。！？][”’」』）】])|(?<!\s)\s*\n\s*"
)
_PORTION = 1 << 12  # tokens; the embeddings of fewer than twice as many are in memory at once


def find_sentence_places(text: str) -> list[tuple[int, int]]:
    """Return the start and end of the sentences of a text.

    They end in a full stop, an exclamation or question mark, or a line break.
    """
    breaks = [found.span() for found in _END.finditer(text)]
    starts, ends = [0, *(end for _, end in breaks)], [*(start for start, _ in breaks), len(text)]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if text[start:end].strip()]


@dataclass(frozen=True)
class TextSentences:
    """The sentences of some sequences.

    Attributes:
        ids: the token ids of each sentence, without special tokens.
        counts: the number of sentences of each sequence.
    """

    ids: Ragged
    counts: Tensor

    def slice(self, start: int, stop: int) -> "TextSentences":
        """Return those of the sequences from `start` to `stop`."""
        bounds = torch.cat([torch.zeros(1, dtype=torch.int64), self.counts.cumsum(0)])
        own = slice(int(bounds[start]), int(bounds[stop]))
        return TextSentences(self.ids.select(own), self.counts[start:stop])

    @classmethod
    def gather(cls, parts: Sequence[Sequence[Tensor]]) -> Self:
        """Return the sentences of some sequences from the token ids of each sentence of each sequence."""
        rows = [*chain.from_iterable(parts)]
        ids = Ragged.from_lengths(torch.cat([torch.empty(0, dtype=torch.int32), *rows]), [len(row) for row in rows])
        return cls(ids, torch.tensor([len(part) for part in parts], dtype=torch.int64))

    def list_parts(self) -> list[list[Tensor]]:
        """Return the token ids of each sentence of each sequence, which `gather` puts together again."""
        rows = iter(self.ids)
        return [[*islice(rows, count)] for count in self.counts.tolist()]


def read_sentences(texts: Sequence[str], documents: Documents, tokeniser: Tokeniser) -> TextSentences:
    """Return the sentences of the sequences that texts have become.

    The first window of a text has all sentences of the text. Each further one has the first of them alone, because a
    sequence without any could not be scored, and a single sentence has none to be compared with. If only the beginning
    of a text is taken, its last sentence is cut there.

    Args:
        texts: the texts.
        documents: their token ids.
        tokeniser: what made them.
    """
    limit = tokeniser.room
    cut = set(documents.cut)
    used = enumerate(zip(texts, documents.counts.tolist(), strict=True))
    # nothing is made of a text that was refused, and a beginning has no more sentences than tokens
    places = [
        (find_sentence_places(text)[: limit if index in cut else None] if windows else [])
        for index, (text, windows) in used
    ]
    ids = tokeniser.tokenise_parts(
        [text[start:end] for text, own in zip(texts, places, strict=True) for start, end in own]
    )
    lengths, first = ids.lengths.tolist(), 0
    chosen: list[int] = []
    kept: list[int] = []
    counts: list[int] = []
    for index, windows in enumerate(documents.counts.tolist()):
        own, room = [], limit
        for number in range(first, first + len(places[index])):
            length = min(lengths[number], room) if index in cut else lengths[number]
            if length:
                own.append((number, length))
            room -= length
        for sentences in (own, *[own[:1]] * (windows - 1)) if windows else ():
            chosen += [number for number, _ in sentences]
            kept += [length for _, length in sentences]
            counts.append(len(sentences))
        first += len(places[index])
    runs = torch.tensor(kept, dtype=torch.int64)
    rows = list_run_rows(ids.offsets[torch.tensor(chosen, dtype=torch.int64)], runs)
    return TextSentences(Ragged.from_lengths(ids.values[rows], runs), torch.tensor(counts, dtype=torch.int64))


@torch.no_grad()
def embed_sentences(embeddings: nn.Module, sentences: TextSentences) -> Ragged:
    """Return, for each sequence, the number of tokens of its sentences and the mean of their input embeddings.

    A row has 1 + E numbers, float32. Input embeddings do not depend on other tokens. Hidden states do: the deeper the
    layer, the more a sentence looks like what is around it.
    """
    device = next(embeddings.parameters()).device
    ids, owners = sentences.ids, torch.arange(len(sentences.ids))
    # A text without full stops is one sentence, however long. Pieces are counted from its own start.
    pieces = -(-ids.lengths // _PORTION)
    owners = owners.repeat_interleave(pieces)
    lengths = torch.full_like(owners, _PORTION)
    lengths[pieces.cumsum(0) - 1] = ids.lengths - (pieces - 1) * _PORTION
    cut = Ragged.from_lengths(ids.values, lengths)
    portions = cut.offsets[1:] // _PORTION
    bounds = [0, *(portions.diff().nonzero().flatten() + 1).tolist(), len(cut)]
    sums = []
    for start, stop in pairwise(bounds):
        own = cut.select(slice(start, stop))
        rows = embeddings(upload(own.values.long(), device)).float()
        # segment_reduce refuses nothing at all
        sums.append(
            (torch.segment_reduce(rows, "sum", lengths=upload(own.lengths, device)) if len(own) else rows).cpu()
        )
    added = torch.cat(sums)
    total = torch.zeros(len(ids), added.shape[1]).index_add_(0, owners, added)
    counts = ids.lengths[:, None].float()
    return Ragged.from_lengths(torch.cat([counts, total / counts], 1), sentences.counts)
