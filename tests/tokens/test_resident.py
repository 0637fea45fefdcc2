"""A corpus in the memory of a device gives the batches that its source gives."""

import pytest
import torch
from builders import random_tokens
from hypothesis import given
from hypothesis import strategies as st

from apood.tokens.batch import TokenBatch
from apood.tokens.loader import Resident, copy_to_device, gather_sequences, has_room_for
from apood.tokens.source import SkipFirst, Subset, TokenSource

CPU = torch.device("cpu")


def everything(batch: TokenBatch) -> Subset:
    """A source that has to be copied, because it is no batch that lies there already."""
    return Subset(batch, slice(None))


def same(found: TokenBatch, expected: TokenBatch) -> bool:
    return torch.equal(found.values, expected.values) and torch.equal(found.offsets, expected.offsets)


lengths = st.lists(st.integers(0, 5), min_size=1, max_size=8) | st.integers(1, 8).map(lambda count: [3] * count)


@given(lengths, st.data())
def test_any_selection_is_that_of_the_source(lengths, data):
    source = random_tokens(lengths, 3, dtype=torch.float16)
    (own,) = copy_to_device([everything(source)], CPU)
    chosen = data.draw(st.lists(st.integers(-len(lengths), len(lengths) - 1)))
    assert same(own.select(chosen), source.select(chosen))
    assert all(map(same, own.batches(4), source.batches(4)))


@given(lengths, st.data())
def test_it_leaves_out_first_tokens_like_any_source(lengths, data):
    source = random_tokens(lengths, 3)
    (own,) = copy_to_device([everything(source)], CPU)
    chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1)))
    found, expected = own.skip_first(), SkipFirst(source)
    assert same(found.select(chosen), expected.select(chosen))
    assert torch.equal(found.lengths, expected.lengths) and found.values is own.values, "nothing is copied"
    assert torch.equal(
        torch.cat([b.values for b in found.batches(4)]), torch.cat([b.values for b in expected.batches(4)])
    )


@given(lengths, lengths, st.data())
def test_two_sources_in_one_memory_make_one_batch(lengths, others, data):
    sources = [everything(random_tokens(own, 3, seed=i)) for i, own in enumerate((lengths, others))]
    parts = copy_to_device(sources, CPU)
    assert parts[0].values is parts[1].values
    chosen = [torch.tensor(data.draw(st.lists(st.integers(0, len(own) - 1))), dtype=torch.int64) for own in sources]
    (found,) = gather_sequences(parts, chosen)
    assert same(
        found, TokenBatch.concatenate([source.select(own) for source, own in zip(sources, chosen, strict=True)])
    )
    first, second = gather_sequences(sources, chosen)
    assert same(first, sources[0].select(chosen[0])) and same(second, sources[1].select(chosen[1]))


def test_sources_of_different_dtypes_keep_them():
    sources = [everything(random_tokens([2, 3], 4, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16)]
    parts = copy_to_device(sources, CPU)
    assert [part.dtype for part in parts] == [torch.float32, torch.bfloat16]
    assert len(gather_sequences(parts, [torch.tensor([0]), torch.tensor([1])])) == 2


def test_a_batch_that_is_there_is_not_copied():
    source = random_tokens([2, 3], 4)
    (own,) = copy_to_device([source], CPU)
    assert own.values.data_ptr() == source.values.data_ptr()


def test_it_is_a_source_with_an_encoder_and_without_channels():
    source = random_tokens([2, 3], 4).with_channels(text=random_tokens([1, 1], 1))
    named = TokenBatch(source.values, source.offsets, source.channels, {"model": "a model"})
    (own,) = copy_to_device([named], CPU)
    assert isinstance(own, TokenSource) and own.encoder == {"model": "a model"} and list(own.channels) == []
    assert own.dim == 4 and own.dtype == torch.float64 and len(own) == 2 and own.select([0]).encoder == own.encoder


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [[40] * 50, list(range(1, 51))], ids=["uniform", "ragged"])
@pytest.mark.parametrize("skip", [False, True])
def test_batches_are_gathered_on_a_gpu_without_waiting_for_it(lengths, skip):
    device = torch.device("cuda", torch.cuda.current_device())
    sources = [everything(random_tokens(lengths, 16, seed=seed, dtype=torch.bfloat16)) for seed in (0, 1)]
    assert has_room_for(sources, device, spare=0) and not has_room_for(sources, device, spare=2**50)
    parts = [part.skip_first() if skip else part for part in copy_to_device(sources, device)]
    chosen = [torch.randperm(50)[:20].sort().values for _ in sources]
    gather_sequences(parts, chosen)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        (found,) = gather_sequences(parts, chosen)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = [(SkipFirst(s) if skip else s).select(own) for s, own in zip(sources, chosen, strict=True)]
    assert same(found.to("cpu"), TokenBatch.concatenate(expected))
    assert isinstance(parts[0], Resident)
