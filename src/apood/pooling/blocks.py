"""How a ragged batch is cut: blocks of tokens that fill a cache, and rectangles over which a softmax runs.

A block is a run of consecutive tokens, so its matrix product reads them where they lie, without
padding: as many short sequences as fit, or one that is long, or one of several equal pieces of a
longer one. Only what comes after the product is padded: the short sequences of a block are sorted by
length and put together into rectangles.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

__all__ = ["VECTOR", "Block", "Rectangle", "cut_into_blocks", "rows_of"]

VECTOR = 16  # numbers in the widest vector of a CPU: long sequences are cut at multiples of it
_ALONE = 4  # a sequence with more than this part of the tokens of a block is a block of its own
_STRETCH = 2  # the longest sequence of a rectangle over its shortest: padding costs less than many small operations


@dataclass(frozen=True)
class Rectangle:
    """Some `sequences` of a block, each in `longest` of its `rows`; where they are padding is true in `padding`."""

    sequences: list[int]
    longest: int
    rows: slice | Tensor
    padding: Tensor | None

    def pick(self, of_block: Tensor) -> Tensor:
        """The rows of `of_block [tokens, K]`, as `[sequences, longest, K]`."""
        picked = of_block[self.rows] if isinstance(self.rows, slice) else of_block.index_select(0, self.rows)
        return picked.view(len(self.sequences), self.longest, -1)


@dataclass(frozen=True)
class Block:
    """Tokens `start : start + sum(lengths)`: `lengths[i]` of them, one after the other, of sequence `sequences[i]`."""

    start: int
    sequences: list[int]
    lengths: list[int]
    piece: bool = False  # of a sequence that goes on in another block

    @property
    def tokens(self) -> slice:
        """Where the tokens lie in the batch."""
        return slice(self.start, self.start + sum(self.lengths))

    @property
    def even(self) -> bool:
        """Whether the sequences are a rectangle as they lie."""
        return min(self.lengths) == max(self.lengths)

    def rectangles(self, device: torch.device) -> list[Rectangle]:
        """Covers every sequence of the block once."""
        if self.even:
            return [Rectangle(self.sequences, self.lengths[0], slice(None), None)]
        starts = [0, *accumulate(self.lengths)]
        groups: list[list[int]] = []
        for i in sorted(range(len(self.lengths)), key=self.lengths.__getitem__):
            if groups and self.lengths[i] <= _STRETCH * self.lengths[groups[-1][0]]:
                groups[-1].append(i)
            else:
                groups.append([i])
        return [self._rectangle(group, starts, device) for group in groups]

    def _rectangle(self, group: list[int], starts: list[int], device: torch.device) -> Rectangle:
        sequences = [self.sequences[i] for i in group]
        shortest, longest = self.lengths[group[0]], self.lengths[group[-1]]
        if len(group) == 1:
            return Rectangle(sequences, longest, slice(starts[group[0]], starts[group[0]] + longest), None)
        lengths = torch.tensor([self.lengths[i] for i in group])[:, None]
        steps = torch.arange(longest)
        # padding repeats the last token of the sequence, which is always a row that exists
        rows = torch.tensor([starts[i] for i in group])[:, None] + torch.minimum(steps, lengths - 1)
        padding = (steps >= lengths).to(device) if shortest < longest else None
        return Rectangle(sequences, longest, rows.flatten().to(device), padding)


def rows_of(sequences: list[int]) -> slice | list[int]:
    """An index of these rows: a slice, which costs next to nothing, if they follow each other."""
    first, last = sequences[0], sequences[-1]
    return slice(first, last + 1) if sequences == list(range(first, last + 1)) else sequences


def cut_into_blocks(offsets: Tensor, block_tokens: int) -> Iterator[Block]:
    """Covers every token of every sequence once, in order; empty sequences appear in no block.

    Args:
        offsets: of the sequences.
        block_tokens: tokens of a block at most, a multiple of `VECTOR`.
    """
    block, size = Block(0, [], []), 0
    for sequence, (start, stop) in enumerate(pairwise(offsets.tolist())):
        length = stop - start
        alone = length * _ALONE > block_tokens
        if size and (alone or size + length > block_tokens):
            yield block
            size = 0
        if alone:
            pieces = -(-length // block_tokens)
            # even cuts: full blocks would often leave a piece of a few tokens, which costs a whole pass
            cuts = [-(-length * i // (pieces * VECTOR)) * VECTOR for i in range(pieces)]
            for begin, end in pairwise([*cuts, length]):
                yield Block(start + begin, [sequence], [end - begin], piece=pieces > 1)
        elif length:
            if not size:
                block = Block(start, [], [])
            block.sequences.append(sequence)
            block.lengths.append(length)
            size += length
    if size:
        yield block
