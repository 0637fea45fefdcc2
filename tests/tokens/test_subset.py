"""Parts of a source: the same sequences as a selection, read without a copy of the corpus."""

import pytest
import torch
from builders import observed_sequences
from hypothesis import given
from hypothesis import strategies as st

from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch
from apood.tokens.source import Subset, TokenSource, as_source, split
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter

COUNT = 20
ENCODER = {"model": "small", "layer": 3}


@pytest.fixture(scope="module")
def batch():
    return observed_sequences(COUNT, 3)


@pytest.fixture(scope="module", params=["memory", "store", "subset"])
def source(request, batch, tmp_path_factory):
    """The same sequences wherever a source may lie."""
    if request.param == "memory":
        return batch
    if request.param == "subset":
        around = TokenBatch.concatenate([batch[:3], batch, batch[:2]])
        return Subset(around, slice(3, 3 + COUNT))
    folder = tmp_path_factory.mktemp("tokens") / "store"
    with TokenStoreWriter(folder, dim=3, encoder=ENCODER, shard_bytes=2000) as writer:
        writer.append(batch)
    return TokenStore(folder)


def assert_same(found, expected):
    assert torch.equal(found.values, expected.values) and torch.equal(found.offsets, expected.offsets)
    assert found.channels.keys() == expected.channels.keys() == {"token_logprobs", "sample_logprobs", "logits"}
    for name, channel in expected.channels.items():
        assert torch.equal(found.channels[name].values, channel.values)
        assert torch.equal(found.channels[name].offsets, channel.offsets)


CHOICES = {
    "slice": slice(4, 15),
    "backwards": slice(None, None, -3),
    "integers": [7, 0, -1, 7],
    "booleans": torch.arange(COUNT) % 3 == 1,
    "nothing": [],
}


@pytest.mark.parametrize("indices", CHOICES.values(), ids=CHOICES.keys())
def test_a_subset_is_a_source_equal_to_the_selection(source, batch, indices):
    subset, expected = Subset(source, indices), batch.select(indices)
    assert isinstance(subset, TokenSource) and as_source(subset) is subset
    assert len(subset) == len(expected) and subset.lengths.tolist() == expected.lengths.tolist()
    assert (subset.dim, subset.dtype, subset.encoder) == (3, torch.float32, source.encoder)
    assert set(subset.channels) == set(batch.channels)
    assert_same(subset.select(slice(None)), expected)
    parts = list(subset.batches(11))
    assert all(int(part.lengths.sum()) <= 11 or len(part) == 1 for part in parts)
    if len(expected):
        assert_same(TokenBatch.concatenate(parts), expected)
        assert_same(subset.select([-1, 0]), expected.select([-1, 0]))
    else:
        assert parts == []


def test_a_subset_of_a_subset(source, batch):
    inner = Subset(Subset(source, slice(2, 18, 2)), [5, 0, 3])
    assert_same(inner.select(slice(None)), batch.select([12, 2, 8]))


def test_consecutive_sequences_in_memory_are_not_copied(batch):
    picked = Subset(batch, slice(2, 9)).select(slice(1, 4))
    assert picked.values.data_ptr() == batch[3:6].values.data_ptr()


@pytest.mark.parametrize("indices", [[COUNT], [-COUNT - 1], [0.5], torch.ones(3, dtype=torch.bool)])
def test_a_subset_of_what_is_not_there_is_refused_at_once(source, indices):
    with pytest.raises(InputError):
        Subset(source, indices)


def numbered(count):
    """Sequences of one token that is their number."""
    return TokenBatch.from_lengths(torch.arange(float(count))[:, None], [1] * count)


def numbers(subset):
    return subset.select(slice(None)).values.flatten().int().tolist()


@given(st.integers(0, 50), st.floats(0, 1), st.integers(0, 2**31))
def test_a_split_is_disjoint_whole_and_follows_from_its_seed(count, share, seed):
    rest, taken = map(numbers, split(numbered(count), share, seed))
    assert sorted(rest + taken) == list(range(count)) and len(taken) == round(share * count)
    assert rest == sorted(rest) and taken == sorted(taken), "a store is read forwards"
    assert [rest, taken] == list(map(numbers, split(numbered(count), share, seed)))


def test_another_seed_takes_others():
    taken = [numbers(split(numbered(100), 0.3, seed)[1]) for seed in range(20)]
    assert len(set(map(tuple, taken))) == 20
    drawn = torch.bincount(torch.tensor(taken).flatten(), minlength=100)
    assert int(drawn.min()) < int(drawn.max()) < 20, "no sequence is always taken"


def test_a_split_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    split(numbered(9), 0.5, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_split_keeps_the_channels(source, batch):
    rest, taken = split(source, 0.25, seed=1)
    in_memory = split(batch, 0.25, seed=1)
    for part, expected in zip((rest, taken), in_memory, strict=True):
        assert_same(part.select(slice(None)), expected.select(slice(None)))
