"""Ragged sequences in memory: selecting, cutting, padding, channels, texts, and what is refused."""

import itertools
import mmap
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apood.support.errors import InputError
from apood.tokens import batch as module
from apood.tokens.batch import (
    FLOAT_DTYPES,
    Ragged,
    TokenBatch,
    as_indices,
    cut_by_budget,
    decode_texts,
    empty_rows,
    encode_texts,
)

lengths_lists = st.lists(st.integers(0, 6), min_size=1, max_size=8)
dtypes = st.sampled_from(FLOAT_DTYPES)


def numbered(lengths, dim=3, dtype=torch.float32):
    """Return a batch in which every number is different (as far as the dtype allows), with two channels."""
    values = torch.arange(sum(lengths) * dim).reshape(-1, dim).to(dtype)
    ids = Ragged.from_lengths(torch.arange(sum(lengths)), lengths)
    logits = Ragged.from_lengths(torch.arange(len(lengths) * 2.0).reshape(-1, 2), [1] * len(lengths))
    rows = Ragged.from_lengths(values, lengths)
    return TokenBatch(rows.values, rows.offsets, {"input_ids": ids, "logits": logits})


def same(left, right):
    """Return whether two ragged tensors are equal, with their channels."""
    if not (torch.equal(left.values, right.values) and left.values.dtype == right.values.dtype):
        return False
    channels, others = getattr(left, "channels", {}), getattr(right, "channels", {})
    return (
        torch.equal(left.offsets, right.offsets)
        and channels.keys() == others.keys()
        and all(same(channels[name], others[name]) for name in channels)
    )


@st.composite
def selections(draw, count):
    """Draw a slice, integers or booleans, and the list of the numbers that they select."""
    every = list(range(count))
    kind = draw(st.sampled_from(["slice", "integers", "booleans"]))
    if kind == "slice":
        index = draw(st.slices(count))
        return index, every[index]
    if kind == "integers":
        numbers = draw(st.lists(st.integers(-count, count - 1), max_size=2 * count))
        form = draw(st.sampled_from([list, tuple, np.array, torch.tensor, lambda n: np.array(n, np.int8)]))
        return form(numbers), [every[i] for i in numbers]
    keep = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    return draw(st.sampled_from([list, np.array, torch.tensor]))(keep), [i for i in every if keep[i]]


@given(lengths_lists, dtypes, st.data())
def test_a_selection_holds_the_chosen_sequences_in_order(lengths, dtype, data):
    batch = numbered(lengths, dtype=dtype)
    index, numbers = data.draw(selections(len(lengths)))
    chosen = batch.select(index)
    assert len(chosen) == len(numbers) and chosen.dtype == dtype and chosen.dim == batch.dim
    for part, whole in [(chosen, batch), *((chosen.channels[n], batch.channels[n]) for n in batch.channels)]:
        assert part.lengths.tolist() == [int(whole.lengths[i]) for i in numbers]
        for sequence, number in zip(part, numbers, strict=True):
            assert torch.equal(sequence, whole.sequence(number))


@given(lengths_lists, dtypes, st.data())
def test_cutting_and_concatenating_gives_the_batch_back(lengths, dtype, data):
    batch = numbered(lengths, dtype=dtype)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(lengths)), max_size=4)))
    bounds = [0, *cuts, len(lengths)]
    parts = [batch.select(slice(a, b)) for a, b in itertools.pairwise(bounds)]
    assert same(TokenBatch.concatenate(parts), batch)


@given(lengths_lists, dtypes)
def test_sequences_give_the_batch_back(lengths, dtype):
    batch = numbered(lengths, dtype=dtype)
    bare = TokenBatch(batch.values, batch.offsets)
    assert same(TokenBatch.from_sequences(list(batch)), bare)
    assert same(TokenBatch.from_sequences(iter(batch)), bare)
    if dtype != torch.bfloat16:
        assert same(TokenBatch.from_sequences([s.numpy() for s in batch]), bare)


@given(lengths_lists, dtypes, st.sampled_from([torch.bool, torch.int64, torch.uint8, torch.float32]), st.booleans())
def test_padding_is_dropped(lengths, dtype, mask_dtype, left):
    batch = numbered(lengths, dtype=dtype)
    longest = max(lengths) + 1
    padded = torch.full((len(lengths), longest, batch.dim), float("nan"), dtype=dtype)
    mask = torch.zeros(len(lengths), longest, dtype=mask_dtype)
    for i, sequence in enumerate(batch):
        start = longest - len(sequence) if left else 0
        padded[i, start : start + len(sequence)] = sequence
        mask[i, start : start + len(sequence)] = 1
    bare = TokenBatch(batch.values, batch.offsets)
    assert same(TokenBatch.from_padded(padded, mask), bare)
    if dtype != torch.bfloat16:
        assert same(TokenBatch.from_padded(padded.numpy(), mask.tolist()), bare)


def test_padded_tokens_without_a_mask_are_all_kept():
    padded = torch.randn(3, 4, 2)
    batch = TokenBatch.from_padded(padded)
    assert torch.equal(batch.values, padded.reshape(12, 2)) and batch.lengths.tolist() == [4, 4, 4]


def test_a_mask_may_have_holes():
    padded = torch.arange(4.0).reshape(1, 4, 1)
    assert TokenBatch.from_padded(padded, [[1, 0, 0, 1]]).values.tolist() == [[0.0], [3.0]]


@given(lengths_lists, st.integers(1, 20))
def test_batches_keep_the_budget_and_lose_nothing(lengths, budget):
    batch = numbered(lengths)
    parts = list(batch.batches(budget))
    assert all(len(p.values) <= budget or len(p) == 1 for p in parts)
    assert same(TokenBatch.concatenate(parts), batch)
    # Greedy: the next sequence would not have fitted.
    assert all(len(p.values) + int(q.lengths[0]) > budget for p, q in itertools.pairwise(parts))


@given(lengths_lists, dtypes, dtypes)
def test_to_changes_the_tokens_and_leaves_the_channels(lengths, before, after):
    batch = numbered(lengths, dtype=before)
    moved = batch.to("cpu", after)
    assert moved.dtype == after and torch.equal(moved.values, batch.values.to(after))
    assert all(same(moved.channels[n], batch.channels[n]) for n in batch.channels)
    assert batch.channels["input_ids"].to(dtype=after).values.dtype == after


def test_indexing():
    batch = numbered([2, 0, 3])
    assert torch.equal(batch[0], batch.values[:2]) and torch.equal(batch[-1], batch.values[2:])
    assert torch.equal(batch[np.int64(2)], batch[2]) and batch[1].shape == (0, 3)
    assert same(batch[1:], batch.select([1, 2])) and same(batch[::-1], batch.select([2, 1, 0]))
    assert batch.encoder is None
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"sequence {index} of 3"):
            batch[index]


def test_consecutive_sequences_are_not_copied():
    batch = numbered([2, 1, 3])
    assert batch[1:].values.data_ptr() == batch.values[2:].data_ptr()


def test_indices_of_a_small_dtype():
    many = TokenBatch.from_padded(torch.arange(300.0).reshape(300, 1, 1))
    assert many.select(np.array([250, 7], np.uint8)).values.flatten().tolist() == [250.0, 7.0]


def test_read_only_big_endian_and_strided_arrays_are_taken(recwarn):
    plain = np.arange(6, dtype=np.float32).reshape(3, 2)
    read_only = plain.copy()
    read_only.flags.writeable = False
    strange = [read_only, plain.astype(">f4"), plain[::-1][::-1], np.asfortranarray(plain), plain.tolist()]
    for array in strange:
        batch = TokenBatch.from_sequences([array])
        assert torch.equal(batch.values.float(), torch.from_numpy(plain))
    assert torch.equal(TokenBatch.from_padded(plain[None, ::-1]).values, torch.from_numpy(plain).flip(0))
    assert not recwarn.list


def test_concatenate_keeps_the_channels_that_all_have():
    batch = numbered([1, 2])
    fewer = TokenBatch(batch.values, batch.offsets, {"logits": batch.channels["logits"]})
    assert set(TokenBatch.concatenate([batch, fewer]).channels) == {"logits"}


def test_concatenate_keeps_the_encoder_that_all_name():
    one, moved, other = (
        {"model": model, "fingerprint": fingerprint, "layers": "3"}
        for model, fingerprint in (("small", "a1"), ("elsewhere/small", "a1"), ("large", "b2"))
    )

    def joined(*encoders):
        return TokenBatch.concatenate([replace(numbered([1, 2]), encoder=e) for e in encoders]).encoder

    assert joined(one, one) == joined(one, moved) == one
    assert joined(one, None) is joined(None, one) is joined(None, None) is None
    for encoders in ((one, other), (one, None, other)):
        with pytest.raises(
            InputError, match=r"of one encoder.*from model small, .* and from model large, .*layers 3\.$"
        ):
            joined(*encoders)


def test_a_batch_carries_no_graph():
    values = torch.ones(3, 2, requires_grad=True)
    direct = TokenBatch(values, torch.tensor([0, 3]), {"logits": Ragged.from_lengths(values * 2, [3])})
    tensors = {
        "direct": direct.values,
        "channel": direct.channels["logits"].values,
        "sequences": TokenBatch.from_sequences([values, values * 2]).values,
        "padded": TokenBatch.from_padded(values[None], torch.ones(1, 3, requires_grad=True)).values,
    }
    assert [name for name, tensor in tensors.items() if tensor.requires_grad] == []
    assert direct.values.data_ptr() == values.data_ptr() and values.requires_grad


def test_empty_batches_are_batches():
    batch = numbered([2, 1])
    nothing = batch.select([])
    assert len(nothing) == 0 and nothing.dim == 3 and list(nothing.batches(5)) == []
    assert same(TokenBatch.concatenate([nothing, batch]), batch)
    assert len(TokenBatch.from_padded(torch.zeros(0, 4, 3), torch.zeros(0, 4))) == 0


@given(lengths_lists)
def test_sequences_without_tokens_have_their_channels(lengths):
    channels = numbered(lengths).channels
    batch = TokenBatch.without_tokens(**channels)
    assert len(batch) == len(lengths) and batch.dim == 0 and batch.lengths.tolist() == [0] * len(lengths)
    assert batch.channels == channels
    order = list(reversed(range(len(lengths))))
    picked = batch.select(order)
    assert all(same(picked.channels[name], channel.select(order)) for name, channel in channels.items())
    parts = list(batch.batches(1))  # there are no tokens to count
    assert len(parts) == 1 and same(parts[0], batch)
    assert same(TokenBatch.concatenate([batch, batch]), batch.select([*range(len(lengths))] * 2))


def test_a_batch_has_at_most_1024_sequences():
    """Otherwise large channels of many short sequences would be read at once."""
    channel = Ragged.from_lengths(torch.arange(2500), [1] * 2500)
    for batch in (
        TokenBatch.without_tokens(number=channel),
        TokenBatch.from_lengths(torch.zeros(2500, 1), [1] * 2500).with_channels(number=channel),
    ):
        parts = list(batch.batches(10**9))
        assert [len(part) for part in parts] == [1024, 1024, 452]
        assert same(TokenBatch.concatenate(parts), batch)
    assert list(cut_by_budget(torch.tensor([0] * 1024), 1)) == [(0, 1024)]
    assert list(cut_by_budget(torch.tensor([0] * 1023 + [5, 1]), 1)) == [(0, 1023), (1023, 1024), (1024, 1025)]


def test_a_batch_needs_tokens_or_a_channel():
    with pytest.raises(InputError, match="at least one channel"):
        TokenBatch.without_tokens()


def test_channels_are_added_or_replaced():
    batch = replace(numbered([2, 0, 3]), encoder={"model": "small"})
    labels = Ragged.from_lengths(torch.arange(3), [1, 1, 1])
    more = batch.with_channels(labels=labels)
    assert more.channels == {**batch.channels, "labels": labels} and set(batch.channels) == {"input_ids", "logits"}
    assert more.values.data_ptr() == batch.values.data_ptr() and torch.equal(more.offsets, batch.offsets)
    assert more.encoder == {"model": "small"}
    assert more.with_channels(logits=labels).channels["logits"] is labels, "a channel of the same name is replaced"
    assert same(batch.with_channels(), batch)
    short = Ragged.from_lengths(torch.arange(2), [1, 1])
    with pytest.raises(InputError, match="'labels' has 2 sequences"):
        batch.with_channels(labels=short)
    with pytest.raises(InputError, match="'b' has 2 sequences"):
        TokenBatch.without_tokens(a=labels, b=short)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([], "There are no sequences: the list is empty."),
        ([np.ones(3)], r"shape \[tokens, D\], got \(3,\) at sequence 0"),
        ([np.ones((2, 2)), np.ones((2, 2), np.int64)], "Tokens must be float16, .*, got int64 at sequence 1"),
        ([np.ones((2, 2)), np.ones((2, 3))], "sequence 0 has D=2, sequence 1 has D=3"),
        (["text"], "Tokens at sequence 0 must be an array of numbers, got text"),
        ([None], "got NoneType"),
        ([[[1.0, 2.0], [3.0]]], "Tokens at sequence 0 must be an array of numbers, got list"),
    ],
)
def test_invalid_sequences_are_refused(data, sentence):
    with pytest.raises(InputError, match=sentence):
        TokenBatch.from_sequences(data)


@pytest.mark.parametrize(
    ("padded", "mask", "sentence"),
    [
        (torch.ones(2, 3), None, r"shape \[sequences, longest, D\].*got float32 of shape \(2, 3\)"),
        (torch.ones(2, 3, 1, dtype=torch.int64), None, "got int64"),
        (torch.ones(2, 3, 1), torch.ones(2, 4), r"mask must have shape \(2, 3\).*got \(2, 4\)"),
        (torch.ones(1, 2, 1), [[0, 2]], "only 0 and 1.*from 0 to 2"),
        (torch.ones(1, 2, 1), [[float("nan"), 1.0]], "only 0 and 1"),
        (torch.ones(2, 2, 1), [[1], [1, 0]], "The mask must be an array of numbers, got list"),
        ("text", None, "Padded tokens must be an array of numbers, got str"),
    ],
)
def test_invalid_padded_tokens_are_refused(padded, mask, sentence):
    with pytest.raises(InputError, match=sentence):
        TokenBatch.from_padded(padded, mask)


@pytest.mark.parametrize(
    ("indices", "sentence"),
    [
        ([3], r"must lie in \[-3, 3\), got 3 to 3"),
        ([0, -4], "got -4 to 0"),
        ([0.0, 1.0], "must be integers or booleans, got float64"),
        ([True, False], r"each of the 3 sequences, got shape \(2,\)"),
        ("abc", "A selection of sequences must be an array of numbers, got str"),
    ],
)
def test_invalid_selections_are_refused(indices, sentence):
    with pytest.raises(InputError, match=sentence):
        numbered([1, 2, 0]).select(indices)


def test_selections_of_an_empty_batch():
    assert as_indices([], 0).tolist() == [] and as_indices(slice(None), 0).tolist() == []
    with pytest.raises(InputError, match="must lie in"):
        as_indices([0], 0)


@pytest.mark.parametrize(
    ("values", "offsets", "sentence"),
    [
        (torch.ones(3), torch.tensor([0, 2]), r"rise from 0 to the number of rows \(3\), got 0 to 2"),
        (torch.ones(3), torch.tensor([1, 3]), "got 1 to 3"),
        (torch.ones(3), torch.tensor([0, 2, 1, 3]), "must rise"),
        (torch.ones(3), torch.tensor([0, 3], dtype=torch.int32), "int64 CPU tensor.*got torch.int32"),
        (torch.ones(3), torch.tensor([[0, 3]]), r"shape \(1, 2\)"),
        (torch.ones(0), torch.empty(0, dtype=torch.int64), "one entry more"),
        (torch.tensor(1.0), torch.tensor([0]), "a single number"),
    ],
)
def test_invalid_offsets_are_refused(values, offsets, sentence):
    with pytest.raises(InputError, match=sentence):
        Ragged(values, offsets)


def test_invalid_batches_are_refused():
    offsets = torch.tensor([0, 2])
    with pytest.raises(InputError, match=r"\[tokens, D\], got \(2,\)"):
        TokenBatch(torch.ones(2), offsets)
    with pytest.raises(InputError, match="got int64"):
        TokenBatch(torch.ones(2, 2, dtype=torch.int64), offsets)
    with pytest.raises(InputError, match="Channel 'labels' has 2 sequences, the tokens have 1"):
        TokenBatch(torch.ones(2, 2), offsets, {"labels": Ragged.from_lengths(torch.ones(2), [1, 1])})
    with pytest.raises(InputError, match=r"one token dimension.*\[2, 3\]"):
        TokenBatch.concatenate([numbered([1], dim=2), numbered([1], dim=3)])
    for kind in (Ragged, TokenBatch):
        with pytest.raises(InputError, match="Nothing to concatenate"):
            kind.concatenate([])
    with pytest.raises(InputError, match="at least 1, got 0"):
        list(cut_by_budget(torch.tensor([1]), 0))


def test_a_channel_may_be_numpy_inside_but_must_be_ragged():
    rows = Ragged.from_lengths(np.zeros((3, 4), np.float32), [1, 1, 1])
    assert TokenBatch.without_tokens(logits=rows).channels["logits"].values.shape == (3, 4)
    with pytest.raises(InputError, match=r"'logits' must be Ragged, got Tensor; Ragged\.from_lengths"):
        TokenBatch.without_tokens(logits=torch.zeros(3, 4))


def test_mixed_dtypes_are_widened():
    batch = TokenBatch.from_sequences([torch.ones(1, 2, dtype=torch.float16), torch.ones(1, 2, dtype=torch.bfloat16)])
    assert batch.dtype == torch.float32


def test_texts_are_encoded_and_decoded():
    texts = ["", "plain", "ünï €", "line\nend\x00", "🙂", "\ud800 alone"]
    assert decode_texts(encode_texts(texts)) == texts
    assert decode_texts(encode_texts(iter([]))) == [] and decode_texts(encode_texts(["", ""])) == ["", ""]
    with pytest.raises(InputError, match="a single str"):
        encode_texts("text")
    with pytest.raises(InputError, match=r"got torch\.float32"):
        decode_texts(Ragged.from_lengths(torch.ones(2), [2]))


@pytest.mark.parametrize(
    ("count", "shape", "dtype"),
    [
        (0, (3,), torch.float32),
        (5, (2, 3), torch.int64),
        (2_200_000, (), torch.bfloat16),
        (70_000, (17,), torch.float32),
    ],
)
def test_empty_rows_can_be_written_and_read(count, shape, dtype):
    rows = empty_rows(count, shape, dtype)
    assert rows.shape == (count, *shape) and rows.dtype == dtype and rows.is_contiguous()
    rows.fill_(3)
    assert bool((rows == 3).all())


def test_mapped_memory_is_freed_with_its_last_tensor(monkeypatch):
    maps = []

    class Watched(mmap.mmap):
        def __new__(cls, *arguments, **options):
            found = super().__new__(cls, *arguments, **options)
            maps.append(weakref.ref(found))
            return found

    monkeypatch.setattr(module.mmap, "mmap", Watched)
    rows = empty_rows(3_000_000, (2,), torch.float32)
    part = rows[5:10]
    del rows
    assert len(maps) == 1 and maps[0]() is not None
    del part
    assert maps[0]() is None


@pytest.mark.parametrize("huge", [None, 12_345])  # not Linux, or a kernel that does not know the advice
def test_a_system_without_huge_pages(monkeypatch, huge):
    monkeypatch.setattr(module, "_HUGE", huge)
    assert empty_rows(3_000_000, (2,), torch.float32).shape == (3_000_000, 2)
