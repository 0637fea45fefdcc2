"""Token sources: the forms of data that are taken, subsets, splits, skipped first tokens, encoder identities."""

import numpy as np
import pytest
import torch
from builders import observed_sequences
from hypothesis import given
from hypothesis import strategies as st

from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch
from apood.tokens.identity import describe_encoder, describe_other, same_encoder
from apood.tokens.source import Beginnings, Subset, TokenSource, Trimmed, as_source, split, spread_evenly
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter

COUNT = 20
ENCODER = {"model": "small", "layers": "3"}


@pytest.fixture(scope="module")
def batch():
    return observed_sequences(COUNT, 3)


@pytest.fixture(scope="module")
def store(batch, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens") / "store"
    with TokenStoreWriter(folder, dim=3, encoder=ENCODER, shard_bytes=2000) as writer:
        writer.append(batch)
    return TokenStore(folder)


def assert_same(found, expected):
    assert torch.equal(found.values, expected.values) and torch.equal(found.offsets, expected.offsets)
    assert (
        found.channels.keys()
        == expected.channels.keys()
        == {"sentences", "token_logprobs", "sample_logprobs", "logits"}
    )
    for name, channel in expected.channels.items():
        assert torch.equal(found.channels[name].values, channel.values)
        assert torch.equal(found.channels[name].offsets, channel.offsets)


# Forms of data.


def pad(batch):
    values = torch.zeros(len(batch), int(batch.lengths.max()), batch.dim)
    mask = torch.arange(values.shape[1]) < batch.lengths[:, None]
    values[mask] = batch.values
    return values, mask


@pytest.mark.parametrize(
    "form",
    [
        lambda batch: batch,
        tuple,
        lambda batch: [sequence.numpy() for sequence in batch],
        pad,
        lambda batch: (pad(batch)[0].numpy(), pad(batch)[1].tolist()),
    ],
    ids=["batch", "tensors", "arrays", "padded", "padded array and list"],
)
def test_every_form_of_the_same_tokens(form, batch):
    source = as_source(form(batch))
    assert isinstance(source, TokenSource)
    whole = source.select(slice(None))
    assert torch.equal(whole.values, batch.values) and torch.equal(whole.offsets, batch.offsets)


def test_arrays_of_objects_are_what_they_hold(batch):
    ragged = np.empty(COUNT, dtype=object)
    ragged[:] = [tokens.numpy() for tokens in batch]
    assert torch.equal(as_source(ragged).values, batch.values)
    even = np.ones((4, 3, 2))
    assert np.array_equal(as_source(even.astype(object)).values, as_source(even).values)


def test_a_source_is_returned_unchanged(batch, store):
    for source in (batch, store, Subset(store, [0]), Trimmed(store, first=True, last=False)):
        assert isinstance(source, TokenSource) and as_source(source) is source


def test_a_padded_array_without_a_mask_has_no_padding(batch):
    values, _ = pad(batch)
    expected = [values.shape[1]] * COUNT
    assert as_source(values).lengths.tolist() == as_source(values.numpy()).lengths.tolist() == expected


def test_a_pair_of_2d_arrays_is_two_sequences():
    assert as_source((np.ones((2, 3)), np.ones((1, 3)))).lengths.tolist() == [2, 1]


@pytest.mark.parametrize("data", [None, "text", {"values": 1}, np.ones(3)])
def test_other_types_are_refused(data):
    with pytest.raises(InputError, match=f"got {type(data).__name__}"):
        as_source(data)


@pytest.mark.parametrize("data", ["hello", ["hello"], [["hello", "you"]]])
def test_the_error_for_texts_names_the_encoder(data):
    with pytest.raises(InputError, match="TextEncoder or `apood embed`") as refusal:
        as_source(data)
    assert "numpy" not in str(refusal.value)


# Subsets.

CHOICES = {
    "slice": slice(4, 15),
    "backwards": slice(None, None, -3),
    "integers": [7, 0, -1, 7],
    "booleans": torch.arange(COUNT) % 3 == 1,
    "nothing": [],
}


@pytest.mark.parametrize("indices", CHOICES.values(), ids=CHOICES.keys())
def test_a_subset_equals_the_selection(store, batch, indices):
    subset, expected = Subset(store, indices), batch.select(indices)
    assert len(subset) == len(expected) and subset.lengths.tolist() == expected.lengths.tolist()
    assert (subset.dim, subset.dtype, subset.encoder) == (3, torch.float32, ENCODER)
    assert set(subset.channels) == set(batch.channels)
    assert_same(subset.select(slice(None)), expected)
    parts = list(subset.batches(11))
    assert all(int(part.lengths.sum()) <= 11 or len(part) == 1 for part in parts)
    if len(expected):
        assert_same(TokenBatch.concatenate(parts), expected)
        assert_same(subset.select([-1, 0]), expected.select([-1, 0]))
    else:
        assert parts == []


def test_a_subset_of_a_subset(store, batch):
    inner = Subset(Subset(store, slice(2, 18, 2)), [5, 0, 3])
    assert_same(inner.select(slice(None)), batch.select([12, 2, 8]))


def test_consecutive_sequences_in_memory_are_not_copied(batch):
    picked = Subset(batch, slice(2, 9)).select(slice(1, 4))
    assert picked.values.data_ptr() == batch[3:6].values.data_ptr()


@pytest.mark.parametrize("indices", [[COUNT], torch.ones(3, dtype=torch.bool)])
def test_invalid_indices_are_refused_at_once(store, indices):
    with pytest.raises(InputError):
        Subset(store, indices)


# Splits.


def make_numbered(count):
    """Return sequences of one token, which is their number."""
    return TokenBatch.from_lengths(torch.arange(float(count))[:, None], [1] * count)


def numbers_of(subset):
    return subset.select(slice(None)).values.flatten().int().tolist()


@given(st.integers(0, 50), st.floats(0, 1), st.integers(0, 2**31))
def test_a_split_is_disjoint_complete_and_follows_from_its_seed(count, share, seed):
    rest, taken = map(numbers_of, split(make_numbered(count), share, seed))
    assert sorted(rest + taken) == list(range(count)) and len(taken) == round(share * count)
    assert rest == sorted(rest) and taken == sorted(taken), "a store is read forwards"
    assert [rest, taken] == list(map(numbers_of, split(make_numbered(count), share, seed)))


def test_seeds_take_different_sequences():
    taken = [numbers_of(split(make_numbered(100), 0.3, seed)[1]) for seed in range(20)]
    assert len(set(map(tuple, taken))) == 20
    times = torch.bincount(torch.tensor(taken).flatten(), minlength=100)
    assert int(times.min()) < int(times.max()) < 20, "no sequence is always taken"


@pytest.mark.parametrize("count", [1, 5, 7, 1000, 20_000_004, 100_000_007])
def test_numbers_are_spread_over_any_count(count):
    numbers = spread_evenly(count, 7).tolist()
    assert numbers == sorted(set(numbers)) and len(numbers) == min(count, 7)
    assert numbers[0] == 0 and count - 8 <= numbers[-1] <= count - 1


def test_a_split_leaves_the_global_generator_unchanged():
    before = torch.get_rng_state()
    split(make_numbered(9), 0.5, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_split_keeps_the_channels(store, batch):
    for part, expected in zip(split(store, 0.25, seed=1), split(batch, 0.25, seed=1), strict=True):
        assert_same(part.select(slice(None)), expected.select(slice(None)))


# First tokens.


def test_first_tokens_are_skipped():
    batch = TokenBatch.from_sequences([torch.arange(float(n))[:, None] for n in (3, 1, 0, 2)])
    skipped = Trimmed(batch, first=True, last=False)
    assert skipped.lengths.tolist() == [2, 1, 0, 1] and skipped.channels == ()
    assert skipped.select(slice(None)).values.flatten().tolist() == [1, 2, 0, 1]
    assert [part.values.flatten().tolist() for part in skipped.batches(3)] == [[1, 2], [0, 1]]


# Encoder identities.


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (None, {"model": "a"}, True),
        ({"model": "a", "layers": "1"}, {"layers": "1", "model": "a"}, True),
        ({"model": "a", "layers": "1"}, {"model": "a", "layers": "2"}, False),
        ({"model": "a", "layer": -1}, {"model": "a", "layers": "-1"}, True),
        ({"model": "a", "layer": -1}, {"model": "a", "layers": "mix"}, False),
        ({"model": "a", "layer": 1}, {"model": "a", "layer": 2}, False),
        ({"model": "a"}, {"model": "b"}, False),
        ({"model": "a"}, {"model": "a", "mode": None}, True),
        ({"model": "a", "fingerprint": "f"}, {"model": "b", "fingerprint": "f"}, True),
        ({"model": "a", "fingerprint": "f"}, {"model": "a", "fingerprint": "g"}, False),
        ({"model": "a", "fingerprint": "f", "layer": 1}, {"model": "b", "fingerprint": "f", "layer": 2}, False),
        ({"model": "a", "folder": "x"}, {"model": "a", "folder": "y"}, True),
        ({"model": "a", "samples": 1}, {"model": "a", "samples": 2}, True),
    ],
)
def test_encoders_that_are_the_same(first, second, same):
    assert same_encoder(first, second) is same_encoder(second, first) is same


def test_how_samples_were_drawn_can_be_compared():
    assert not same_encoder({"model": "a", "samples": 1}, {"model": "a", "samples": 2}, same_samples=True)


def test_encoders_are_described_in_one_line():
    assert describe_encoder(None) == "an unknown encoder"
    assert describe_encoder({"model": "a/b", "revision": None, "layers": "mix"}) == "model a/b, layers mix"
    one, other = {"model": "a", "layer": 1, "fingerprint": "f" * 20}, {"model": "b", "fingerprint": "g"}
    assert describe_other(one, other) == f"model a, layers 1, fingerprint {'f' * 12}…"
    assert describe_other(other, one) == "model b, fingerprint g, no layers"


@pytest.mark.parametrize("form", ["batch", "store"])
def test_beginnings_are_the_first_tokens(form, request, batch):
    source = request.getfixturevalue(form)
    lengths = torch.minimum(source.lengths, torch.arange(COUNT) % 4)
    beginnings = Beginnings(source, lengths)
    assert (
        len(beginnings) == COUNT and torch.equal(beginnings.lengths, lengths) and beginnings.encoder == source.encoder
    )
    expected = [own[:length] for own, length in zip(batch, lengths.tolist(), strict=True)]
    for found in (
        [own for part in beginnings.batches(7) for own in part],
        list(beginnings.select(slice(None))),
        [beginnings.select([place]).sequence(0) for place in range(COUNT)],
    ):
        assert all(torch.equal(own, other) for own, other in zip(found, expected, strict=True))
