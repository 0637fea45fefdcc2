"""How a ragged batch is cut: every token once, no block too large, little padding."""

import math

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from apood.pooling.blocks import cut_into_blocks

ragged = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 400)), max_size=60)


def offsets_of(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


@given(ragged, st.integers(1, 100))
def test_blocks_cover_every_token_once_and_stay_small(lengths, block_tokens):
    offsets = offsets_of(lengths)
    seen = torch.zeros(sum(lengths), dtype=torch.int64)
    for block in cut_into_blocks(offsets, block_tokens, 0.125):
        pieces = len(block.sequences)
        sizes = block.lengths
        assert pieces == len(block.starts) == len(sizes) == len(set(block.sequences.tolist())) > 0
        assert int(sizes.min()) > 0
        assert pieces * int(sizes.max()) <= block_tokens, "the rectangle, padding included, is bounded"
        assert int(sizes.max()) <= 1.125 * int(sizes.min()), "at most an eighth of a row is padding"
        for sequence, start, size in zip(block.sequences.tolist(), block.starts.tolist(), sizes.tolist(), strict=True):
            assert offsets[sequence] <= start and start + size <= offsets[sequence + 1]
            seen[start : start + size] += 1
    assert (seen == 1).all()


@given(ragged, st.integers(1, 100))
def test_the_rows_of_a_block_are_its_tokens_and_marked_padding(lengths, block_tokens):
    rows_of_all = torch.arange(sum(lengths))
    for block in cut_into_blocks(offsets_of(lengths), block_tokens, 0.125):
        picked, padding = block.token_rows()
        rows = rows_of_all[picked].view(len(block.sequences), -1)
        real = torch.ones_like(rows, dtype=torch.bool) if padding is None else ~padding
        for row, keep, start, size in zip(rows, real, block.starts.tolist(), block.lengths.tolist(), strict=True):
            assert row[keep].tolist() == list(range(start, start + size))
            assert keep.tolist() == [True] * size + [False] * (len(row) - size)


def test_only_one_piece_of_a_long_sequence_is_in_a_block():
    """A block of several pieces may then write its pools without merging."""
    blocks = list(cut_into_blocks(offsets_of([25, 3, 3, 11]), 10, 0.125))
    pieces = [(block.sequences.tolist(), block.lengths.tolist()) for block in blocks]
    assert pieces == [([0], [8]), ([0], [8]), ([0], [9]), ([3], [5]), ([3], [6]), ([1, 2], [3, 3])]


@given(st.integers(1, 2000), st.integers(1, 100))
@example(17, 16)
@example(241, 16)
def test_a_long_sequence_is_cut_evenly_into_as_few_pieces_as_fit(length, block_tokens):
    sizes = [int(block.lengths) for block in cut_into_blocks(offsets_of([length]), block_tokens, 0.125)]
    assert len(sizes) == math.ceil(length / block_tokens)
    assert max(sizes) - min(sizes) <= 1
