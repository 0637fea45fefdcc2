"""How a ragged batch is cut into blocks that fill a cache but never overflow it.

A block is a rectangle: some pieces of equal length, or nearly so. Short sequences are sorted by
length and packed, so little is padded; a sequence longer than a block becomes several pieces of
equal length, or nearly so, each pooled alone and merged afterwards.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

__all__ = ["Block", "cut_into_blocks"]


@dataclass(frozen=True)
class Block:
    """Rows of a rectangle: piece i covers tokens `starts[i] : starts[i] + lengths[i]` of sequence `sequences[i]`."""

    sequences: Tensor
    starts: Tensor
    lengths: Tensor

    def token_rows(self) -> tuple[slice | Tensor, Tensor | None]:
        """Rows of the flat tokens to read, pieces padded to the longest, and where the padding is, `[pieces, S]`."""
        longest = int(self.lengths[-1])
        if len(self.lengths) == 1:
            return slice(int(self.starts[0]), int(self.starts[0]) + longest), None
        steps = torch.arange(longest)
        padding = steps >= self.lengths[:, None]
        # padding repeats the last token of the piece, which is always a row that exists
        rows = self.starts[:, None] + torch.minimum(steps, self.lengths[:, None] - 1)
        return rows.flatten(), padding if bool(padding.any()) else None


def cut_into_blocks(offsets: Tensor, block_tokens: int, padding: float) -> Iterator[Block]:
    """Covers every token of every sequence once; empty sequences appear in no block.

    Args:
        offsets: of the sequences.
        block_tokens: tokens of a block at most, padding included.
        padding: how much longer than its shortest piece the longest piece of a block may be, as a share.
    """
    lengths = offsets.diff()
    long = (lengths > block_tokens).nonzero().flatten()
    for sequence in long.tolist():
        start, length = int(offsets[sequence]), int(lengths[sequence])
        pieces = -(-length // block_tokens)
        # even cuts: full blocks would often leave a piece of a few tokens, which costs a whole pass
        cuts = [start + length * i // pieces for i in range(pieces + 1)]
        for begin, end in pairwise(cuts):
            yield Block(torch.tensor([sequence]), torch.tensor([begin]), torch.tensor([end - begin]))
    order = torch.argsort(lengths, stable=True)
    order = order[(lengths[order] > 0) & (lengths[order] <= block_tokens)]
    ordered = lengths[order].tolist()
    first = 0
    while first < len(ordered):
        last = first
        shortest = ordered[first]
        while (
            last + 1 < len(ordered)
            and (last + 2 - first) * ordered[last + 1] <= block_tokens
            and ordered[last + 1] <= shortest * (1 + padding)
        ):
            last += 1
        chosen = order[first : last + 1]
        yield Block(chosen, offsets[:-1][chosen], lengths[chosen])
        first = last + 1
