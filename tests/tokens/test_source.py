import numpy as np
import pytest
import torch

from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch
from apood.tokens.identity import describe_encoder, same_encoder
from apood.tokens.source import TokenSource, as_source


@pytest.fixture
def batch():
    return TokenBatch.from_sequences([torch.randn(length, 3) for length in (2, 4, 1)])


def padded(batch):
    values = torch.zeros(3, 4, 3)
    mask = torch.arange(4) < batch.lengths[:, None]
    values[mask] = batch.values
    return values, mask


@pytest.mark.parametrize(
    "form",
    [
        lambda batch: batch,
        list,
        tuple,
        lambda batch: [s.numpy() for s in batch],
        padded,
        lambda batch: tuple(part.numpy() for part in padded(batch)),
        lambda batch: (padded(batch)[0].numpy(), padded(batch)[1].tolist()),
    ],
)
def test_every_form_of_the_same_tokens(form, batch):
    source = as_source(form(batch))
    assert isinstance(source, TokenSource)
    whole = source.select(slice(None))
    assert torch.equal(whole.values, batch.values) and torch.equal(whole.offsets, batch.offsets)


def test_a_source_is_taken_as_it_is(batch):
    assert as_source(batch) is batch


def test_a_padded_array_alone_has_no_padding(batch):
    values, _ = padded(batch)
    assert as_source(values).lengths.tolist() == as_source(values.numpy()).lengths.tolist() == [4, 4, 4]


def test_two_sequences_are_no_pair_of_array_and_mask():
    assert as_source((np.ones((2, 3)), np.ones((1, 3)))).lengths.tolist() == [2, 1]


@pytest.mark.parametrize("data", [None, 3, "text", {"values": 1}, np.ones((2, 3)), torch.ones(2)])
def test_what_is_no_source_is_refused_by_its_type(data):
    with pytest.raises(InputError, match=f"got {type(data).__name__}"):
        as_source(data)


@pytest.mark.parametrize("data", ["hello", ["hello"], ("hello", "you"), [["hello", "you"]]])
def test_texts_are_told_where_tokens_come_from(data):
    with pytest.raises(
        InputError, match="token embeddings, which TextEncoder or `apood embed` makes of texts"
    ) as refusal:
        as_source(data)
    assert "numpy" not in str(refusal.value)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (None, None, True),
        (None, {"model": "a"}, True),
        ({"model": "a", "layer": 1}, {"layer": 1, "model": "a"}, True),
        ({"model": "a", "layer": 1}, {"model": "a", "layer": 2}, False),
        ({"model": "a"}, {"model": "b"}, False),
        ({"model": "a"}, {"model": "a", "mode": None}, True),
        ({"model": "a", "fingerprint": "f"}, {"model": "b", "fingerprint": "f"}, True),
        ({"model": "a", "fingerprint": "f"}, {"model": "a", "fingerprint": "g"}, False),
        ({"model": "a", "fingerprint": "f", "layer": 1}, {"model": "b", "fingerprint": "f", "layer": 2}, False),
    ],
)
def test_encoders_that_are_the_same(first, second, same):
    assert same_encoder(first, second) is same_encoder(second, first) is same


def test_encoders_are_described_in_one_line():
    assert describe_encoder(None) == "an unknown encoder"
    assert describe_encoder({"model": "a/b", "revision": None, "layer": -1}) == "model a/b, layer -1"
