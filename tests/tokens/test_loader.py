"""Prefetching, shuffled batches, and corpora in the memory of a device."""

import gc
import itertools
import threading

import pytest
import torch
from builders import random_tokens
from hypothesis import given
from hypothesis import strategies as st

from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch, pin, upload
from apood.tokens.loader import (
    Resident,
    copy_to_device,
    gather_sequences,
    has_room_for,
    move_to_device,
    prefetch,
    shuffle_batches,
)
from apood.tokens.source import Subset, TokenSource, Trimmed
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter

# Prefetching.


def workers():
    return [t for t in threading.enumerate() if t.name == "apood-prefetch"]


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    gc.collect()
    assert workers() == []


@given(st.lists(st.integers()), st.integers(1, 4))
def test_prefetching_changes_nothing(items, depth):
    assert list(prefetch(items, depth)) == items
    assert list(prefetch(iter(items), depth)) == items


def test_the_work_happens_in_another_thread():
    places = list(prefetch(threading.current_thread() for _ in range(3)))
    assert len(places) == 3 and threading.current_thread() not in places


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_than_depth_items_are_ready(depth):
    made = threading.Semaphore(0)
    count = 0

    def items():
        nonlocal count
        while True:
            count += 1
            made.release()
            yield count

    ahead = prefetch(items(), depth)
    assert next(ahead) == 1
    for _ in range(1 + depth):  # the one that was taken, and those prepared after it
        assert made.acquire(timeout=10)
    assert not made.acquire(timeout=0.05)
    assert next(ahead) == 2 and made.acquire(timeout=10) and count == 2 + depth
    ahead.close()


def test_an_exception_is_raised_in_place_of_its_item():
    def items():
        yield 1
        yield 2
        raise KeyError("third")

    ahead = prefetch(items(), depth=5)
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(KeyError, match="third"):
        next(ahead)
    with pytest.raises(StopIteration):
        next(ahead)


def test_closing_stops_the_thread_and_what_it_reads():
    closed = threading.Event()

    def items():
        try:
            yield from itertools.count()
        finally:
            closed.set()

    ahead = prefetch(items(), depth=2)
    assert next(ahead) == 0 and len(workers()) == 1
    ahead.close()
    assert workers() == []
    del ahead
    gc.collect()
    assert closed.is_set()


def test_an_abandoned_loop_stops_the_thread():
    for item in prefetch(itertools.count()):
        if item == 3:
            break
    del item
    gc.collect()
    assert workers() == []


def test_an_error_in_the_loop_stops_the_thread():
    def consume():
        for item in prefetch(itertools.count()):
            if item == 3:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()


def test_no_thread_starts_before_the_first_item():
    ahead = prefetch(itertools.count())
    assert workers() == []
    del ahead


def test_depth_is_checked_at_once():
    with pytest.raises(InputError, match="depth must be at least 1, got 0"):
        prefetch([], 0)


def test_batches_for_the_cpu_are_not_copied():
    batches = [source([1, 2]), source([3])]
    found = move_to_device(iter(batches), torch.device("cpu"))
    first = next(found)
    assert first.values.data_ptr() == batches[0].values.data_ptr()
    assert len(workers()) <= 1 and torch.equal(next(found).offsets, batches[1].offsets)
    with pytest.raises(StopIteration):
        next(found)
    numbers = torch.arange(3)
    assert pin(numbers, torch.device("cpu")) is numbers and upload(numbers, torch.device("cpu")) is numbers


# Shuffled batches.


def source(lengths):
    return TokenBatch.from_sequences([torch.zeros(n, 1) for n in lengths])


def take(count, lengths, **options):
    return [b.tolist() for b in itertools.islice(shuffle_batches(source(lengths), **options), count)]


streams = {
    "lengths": st.lists(st.integers(0, 9), min_size=1, max_size=12),
    "seed": st.integers(0, 2**40),
    "batch_size": st.integers(1, 15),
    "token_budget": st.none() | st.integers(1, 30),
}


@given(**streams)
def test_batches_hold_different_sequences_within_the_limits(lengths, seed, batch_size, token_budget):
    for batch in take(30, lengths, seed=seed, batch_size=batch_size, token_budget=token_budget):
        assert batch == sorted(set(batch)) and 1 <= len(batch) <= min(batch_size, len(lengths))
        if token_budget is None:
            assert len(batch) == min(batch_size, len(lengths))
        else:
            assert sum(lengths[i] for i in batch) <= token_budget or len(batch) == 1


@given(**streams)
def test_no_sequence_is_dropped_or_favoured(lengths, seed, batch_size, token_budget):
    """A sequence that waits for the next batch is at most two visits behind the others."""
    visits = [0] * len(lengths)
    for batch in take(40, lengths, seed=seed, batch_size=batch_size, token_budget=token_budget):
        for number in batch:
            visits[number] += 1
        assert max(visits) - min(visits) <= 2
    if batch_size <= len(lengths) and len(lengths) % batch_size == 0 and token_budget is None:
        first_epoch = take(len(lengths) // batch_size, lengths, seed=seed, batch_size=batch_size)
        assert sorted(itertools.chain(*first_epoch)) == list(range(len(lengths)))


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 99))
def test_whole_epochs_visit_every_sequence_equally(count, batch_size, seed):
    batch_size = min(batch_size, count)
    # After this many batches an epoch ends at the end of a batch.
    batches = take(count, [1] * count, seed=seed, batch_size=batch_size)
    assert sorted(itertools.chain(*batches)) == sorted(list(range(count)) * batch_size)


@given(start=st.integers(0, 25), **streams)
def test_a_stream_resumes_exactly(start, lengths, seed, batch_size, token_budget):
    options = {"seed": seed, "batch_size": batch_size, "token_budget": token_budget}
    assert take(10, lengths, start=start, **options) == take(start + 10, lengths, **options)[start:]


def test_seeds_and_epochs_differ():
    lengths = [1] * 50
    whole = take(6, lengths, seed=0, batch_size=25)
    assert whole[0] != whole[2] != whole[4]
    assert take(2, lengths, seed=1, batch_size=25) != whole[:2] != take(2, lengths, seed=2**40, batch_size=25)


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    take(5, [1] * 9, seed=3, batch_size=4)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_rest_of_an_epoch_meets_random_sequences():
    across = [tuple(b) for b in take(300, [1] * 7, seed=5, batch_size=5)]
    together = sum(0 in b and 1 in b for b in across) / 300
    assert abs(together - (5 * 4) / (7 * 6)) < 0.1


@pytest.mark.parametrize(
    ("lengths", "options", "sentence"),
    [
        ([1], {"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ([1], {"token_budget": 0}, "token_budget must be at least 1, got 0"),
        ([1], {"start": -1}, "start must be at least 0, got -1"),
        ([1], {"seed": -1}, "seed must not be negative, got -1"),
    ],
)
def test_arguments_are_checked_at_once(lengths, options, sentence):
    with pytest.raises(InputError, match=sentence):
        shuffle_batches(source(lengths), **{"seed": 0, "batch_size": 2} | options)


def test_an_empty_source_cannot_be_shuffled():
    with pytest.raises(InputError, match="no sequences to shuffle"):
        shuffle_batches(source([1])[:0], seed=0, batch_size=2)


# Both together.


def test_a_store_read_ahead_in_random_order(tmp_path):
    batch = TokenBatch.from_sequences([torch.full((1 + i % 3, 2), float(i)) for i in range(20)])
    with TokenStoreWriter(tmp_path / "store", dim=2, shard_bytes=100) as writer:
        writer.append(batch)
    store = TokenStore(tmp_path / "store")
    indices = list(itertools.islice(shuffle_batches(batch, seed=1, batch_size=6), 10))
    read = itertools.islice(prefetch(map(store.select, shuffle_batches(store, seed=1, batch_size=6)), depth=2), 10)
    for found, chosen in zip(read, indices, strict=True):
        assert torch.equal(found.values, batch.select(chosen).values)


# Sources in the memory of a device.

CPU = torch.device("cpu")


def as_subset(batch: TokenBatch) -> Subset:
    """Return a source that has to be copied, because it is no batch."""
    return Subset(batch, slice(None))


def same(found: TokenBatch, expected: TokenBatch) -> bool:
    return torch.equal(found.values, expected.values) and torch.equal(found.offsets, expected.offsets)


several = st.lists(st.integers(0, 5), min_size=1, max_size=8) | st.integers(1, 8).map(lambda count: [3] * count)


@given(several, st.data())
def test_a_resident_source_selects_like_its_source(lengths, data):
    source = random_tokens(lengths, 3, dtype=torch.float16)
    (own,) = copy_to_device([as_subset(source)], CPU)
    chosen = data.draw(st.lists(st.integers(-len(lengths), len(lengths) - 1)))
    assert same(own.select(chosen), source.select(chosen))
    assert all(map(same, own.batches(4), source.batches(4)))


@given(several, st.data())
def test_a_resident_source_skips_first_tokens(lengths, data):
    source = random_tokens(lengths, 3)
    (own,) = copy_to_device([as_subset(source)], CPU)
    chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1)))
    found, expected = own.trim(first=True, last=False), Trimmed(source, first=True, last=False)
    assert same(found.select(chosen), expected.select(chosen))
    assert torch.equal(found.lengths, expected.lengths) and found.values is own.values, "nothing is copied"
    assert torch.equal(
        torch.cat([b.values for b in found.batches(4)]), torch.cat([b.values for b in expected.batches(4)])
    )


@given(several, several, st.data())
def test_two_sources_in_one_memory_make_one_batch(lengths, others, data):
    sources = [as_subset(random_tokens(own, 3, seed=i)) for i, own in enumerate((lengths, others))]
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
    sources = [as_subset(random_tokens([2, 3], 4, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16)]
    parts = copy_to_device(sources, CPU)
    assert [part.dtype for part in parts] == [torch.float32, torch.bfloat16]
    assert len(gather_sequences(parts, [torch.tensor([0]), torch.tensor([1])])) == 2


def test_a_batch_on_the_device_is_not_copied():
    source = random_tokens([2, 3], 4)
    (own,) = copy_to_device([source], CPU)
    assert own.values.data_ptr() == source.values.data_ptr()


def test_a_resident_source_has_an_encoder_and_no_channels():
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
    sources = [as_subset(random_tokens(lengths, 16, seed=seed, dtype=torch.bfloat16)) for seed in (0, 1)]
    assert has_room_for(sources, device, spare=0) and not has_room_for(sources, device, spare=2**50)
    parts = [part.trim(first=True, last=False) if skip else part for part in copy_to_device(sources, device)]
    chosen = [torch.randperm(50)[:20].sort().values for _ in sources]
    gather_sequences(parts, chosen)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        (found,) = gather_sequences(parts, chosen)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = [
        (Trimmed(s, first=True, last=False) if skip else s).select(own) for s, own in zip(sources, chosen, strict=True)
    ]
    assert same(found.to("cpu"), TokenBatch.concatenate(expected))
    assert isinstance(parts[0], Resident)
