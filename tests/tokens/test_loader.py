import gc
import itertools
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch, pin, upload
from apood.tokens.loader import move_to_device, prefetch, shuffle_batches
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter

# prefetch


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
    for _ in range(1 + depth):  # the one that was taken, and those ahead of it
        assert made.acquire(timeout=10)
    assert not made.acquire(timeout=0.05)
    assert next(ahead) == 2 and made.acquire(timeout=10) and count == 2 + depth
    ahead.close()


def test_an_exception_comes_where_its_item_would_have_come():
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


def test_nobody_starts_a_thread_before_the_first_item():
    ahead = prefetch(itertools.count())
    assert workers() == []
    del ahead


def test_depth_is_checked_at_once():
    with pytest.raises(InputError, match="depth must be at least 1, got 0"):
        prefetch([], 0)


def test_batches_for_the_cpu_are_read_ahead_and_stay_as_they_are():
    batches = [source([1, 2]), source([3])]
    found = move_to_device(iter(batches), torch.device("cpu"))
    first = next(found)
    assert first.values is batches[0].values or torch.equal(first.values, batches[0].values)
    assert len(workers()) <= 1 and torch.equal(next(found).offsets, batches[1].offsets)
    with pytest.raises(StopIteration):
        next(found)
    numbers = torch.arange(3)
    assert pin(numbers, torch.device("cpu")) is numbers and upload(numbers, torch.device("cpu")) is numbers


# shuffled


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
    """A sequence that has to wait for the next batch is at most two visits behind the others."""
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
    # After this many batches the epochs end together with a batch.
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


def test_the_carried_remainder_is_not_carried_again_and_again():
    """Which sequences fill the batch across two epochs is left to chance."""
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


# together


def test_a_store_read_ahead_in_random_order(tmp_path):
    batch = TokenBatch.from_sequences([torch.full((1 + i % 3, 2), float(i)) for i in range(20)])
    with TokenStoreWriter(tmp_path / "store", dim=2, shard_bytes=100) as writer:
        writer.append(batch)
    store = TokenStore(tmp_path / "store")
    indices = list(itertools.islice(shuffle_batches(batch, seed=1, batch_size=6), 10))
    read = itertools.islice(prefetch(map(store.select, shuffle_batches(store, seed=1, batch_size=6)), depth=2), 10)
    for found, chosen in zip(read, indices, strict=True):
        assert torch.equal(found.values, batch.select(chosen).values)
