"""How a ragged batch is cut: every token once, no block too large, little padding."""

import math

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from apood.pooling.blocked import VECTOR, cut_into_blocks

ragged = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 400)), max_size=60)
sizes = st.integers(1, 8).map(lambda n: n * VECTOR)


def offsets_of(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


@given(ragged, sizes)
def test_blocks_cover_every_token_once_in_order_and_stay_small(lengths, block_tokens):
    offsets = offsets_of(lengths).tolist()
    seen = 0
    for block in cut_into_blocks(offsets_of(lengths), block_tokens):
        assert block.tokens.start == seen, "nothing between two blocks"
        assert 0 < block.tokens.stop - block.tokens.start <= block_tokens
        for sequence, length in zip(block.sequences, block.lengths, strict=True):
            assert offsets[sequence] <= seen < seen + length <= offsets[sequence + 1]
            assert block.piece == (length < lengths[sequence]), "only pieces are merged"
            seen += length
    assert seen == offsets[-1]


@given(ragged, sizes)
def test_the_rectangles_of_a_block_are_its_sequences_and_marked_padding(lengths, block_tokens):
    for block in cut_into_blocks(offsets_of(lengths), block_tokens):
        begin, end = block.tokens.start, block.tokens.stop
        starts = dict(zip(block.sequences, offsets_of(block.lengths).tolist(), strict=False))
        sizes = dict(zip(block.sequences, block.lengths, strict=True))
        seen = []
        for rectangle in block.make_rectangles(torch.device("cpu")):
            rows = rectangle.pick(torch.arange(end - begin)[:, None])[..., 0]
            assert rows.shape == (len(rectangle.sequences), rectangle.longest)
            assert rectangle.longest <= 2 * min(sizes[s] for s in rectangle.sequences), "at most half a row is padding"
            real = torch.ones_like(rows, dtype=torch.bool) if rectangle.padding is None else ~rectangle.padding
            for sequence, row, keep in zip(rectangle.sequences, rows, real, strict=True):
                size = sizes[sequence]
                assert row[keep].tolist() == list(range(starts[sequence], starts[sequence] + size))
                assert keep.tolist() == [True] * size + [False] * (len(row) - size)
            seen += rectangle.sequences
        assert sorted(seen) == block.sequences


def test_a_long_sequence_stands_alone():
    """A block of several sequences may then write its pools without merging."""
    blocks = list(cut_into_blocks(offsets_of([40, 3, 0, 4, 5, 3]), 16))
    pieces = [(block.sequences, block.lengths, block.piece) for block in blocks]
    assert pieces == [
        ([0], [16], True),
        ([0], [16], True),
        ([0], [8], True),
        ([1, 3], [3, 4], False),
        ([4], [5], False),
        ([5], [3], False),
    ]


@given(st.integers(1, 4000), sizes)
@example(17, 16)
@example(241, 16)
@example(511, 256)
def test_a_long_sequence_is_cut_evenly_into_as_few_pieces_as_fit(length, block_tokens):
    found = [block.lengths[0] for block in cut_into_blocks(offsets_of([length]), block_tokens)]
    assert len(found) == math.ceil(length / block_tokens)
    assert max(found) - min(found) < 2 * VECTOR
    assert all(size % VECTOR == 0 for size in found[:-1]), "products of whole vectors are the fastest"
