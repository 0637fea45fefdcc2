"""Work lists: how a ragged batch is cut into items of nearly equal work for the kernels.

An item is a run of at most `chunk` tokens of one sequence. The lists are made on the host, where the offsets are, and
uploaded once per batch, so that a launch needs neither a search nor a synchronisation.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Piece", "Plan", "cut_into_items"]

_Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens whose coefficients the backward pass holds at one time, and their items.

    Attributes:
        first_token: the first token.
        last_token: the last token + 1.
        first_item: the first item.
        last_item: the last item + 1.
    """

    first_token: int
    last_token: int
    first_item: int
    last_item: int


@dataclass(frozen=True, eq=False)
class Plan:
    """The work lists of a batch, on the device of its tokens.

    Attributes:
        items: `[n, 4]` int64: first token, last token + 1, row of the result, sequence; an empty sequence has an empty
            item.
        first: `[sequences + 1]` int64: the rows of sequence i are `first[i] : first[i + 1]`, in token order.
        sequences: their number.
        chunk: the largest number of tokens of an item.
        even: whether all items have the same number of tokens.
        pieces: the parts that the backward pass handles one after the other.
    """

    items: Tensor
    first: Tensor
    sequences: int
    chunk: int
    even: bool
    pieces: tuple[Piece, ...]


def cut_into_items(offsets: Tensor, device: torch.device, chunk: int, piece_tokens: int, heaviest_first: bool) -> Plan:
    """Cut the sequences of `offsets` (CPU, int64) into items of at most `chunk` tokens.

    The plans of the last few batches are kept: a backward pass needs the plan of its forward pass, and batches of even
    lengths have the same plan again and again.

    Args:
        offsets: of the sequences.
        device: of the lists.
        chunk: the largest number of tokens of an item; sequences are cut at multiples of it.
        piece_tokens: the largest number of tokens of a piece that has more than one item.
        heaviest_first: whether long items come first within a piece; otherwise items are in the order of tokens.
    """
    # another stream must not read what this one uploads
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return _cut_into_items(offsets.numpy().tobytes(), device, stream, chunk, piece_tokens, heaviest_first)


@lru_cache(maxsize=8)
def _cut_into_items(
    offsets: bytes, device: torch.device, _stream: int, chunk: int, piece_tokens: int, heaviest_first: bool
) -> Plan:
    items, first = _list_items(np.frombuffer(offsets, np.int64), chunk)
    lengths = items[:, 1] - items[:, 0]
    pieces = _group_items(items, piece_tokens)
    even = len(items) == 0 or bool((lengths == lengths[0]).all())
    if heaviest_first and not even:
        number = np.repeat(np.arange(len(pieces)), [p.last_item - p.first_item for p in pieces])
        items = items[np.lexsort((-lengths, number))]
    # one upload for everything
    packed = torch.from_numpy(np.concatenate([items.reshape(-1), first])).to(device, non_blocking=True)
    return Plan(packed[: items.size].view(-1, 4), packed[items.size :], len(first) - 1, chunk, even, pieces)


def _list_items(bounds: _Numbers, chunk: int) -> tuple[_Numbers, _Numbers]:
    """Return the items in token order, and the first item of each sequence."""
    counts = np.maximum(1, -(-np.diff(bounds) // chunk))
    first = np.zeros(len(bounds), np.int64)
    np.cumsum(counts, out=first[1:])
    sequence = np.repeat(np.arange(len(counts)), counts)
    rows = np.arange(first[-1])
    start = bounds[sequence] + (rows - first[sequence]) * chunk
    stop = np.minimum(start + chunk, bounds[sequence + 1])
    return np.stack([start, stop, rows, sequence], 1), first


def _group_items(items: _Numbers, piece_tokens: int) -> tuple[Piece, ...]:
    """Return pieces of at most `piece_tokens` tokens, each a group of items in token order."""
    pieces = []
    begin = 0
    while begin < len(items):
        first_token = int(items[begin, 0])
        end = max(begin + 1, int(np.searchsorted(items[:, 1], first_token + piece_tokens, side="right")))
        pieces.append(Piece(first_token, int(items[end - 1, 1]), begin, end))
        begin = end
    return tuple(pieces)
