"""Documents: runs of windows, and how batches, subsets, splits and stores keep them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from apood.support.errors import InputError, StoreError
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.documents import (
    WINDOW,
    count_documents,
    find_documents,
    find_worst,
    make_document_mask,
    number_documents,
)
from apood.tokens.source import Subset, split
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter


def number(windows: list[int]) -> Ragged:
    return Ragged.from_lengths(torch.tensor(windows, dtype=torch.int32), [1] * len(windows))


def make_batch(counts: list[int]) -> TokenBatch:
    """Return documents of these numbers of windows; every token holds the number of its document."""
    rng = np.random.default_rng(0)
    rows = [np.full((rng.integers(1, 6), 4), d, "f4") for d, count in enumerate(counts) for _ in range(count)]
    windows = [window for count in counts for window in range(count)]
    return TokenBatch.from_sequences(rows).with_channels(**{WINDOW: number(windows)})


def test_a_document_begins_at_window_0_or_where_windows_are_missing():
    batch = make_batch([1, 3, 2])
    assert find_documents(batch).tolist() == [0, 1, 4] and count_documents(batch) == 3
    assert find_documents(batch.select([2, 3, 5])).tolist() == [0, 2]
    assert find_documents(batch.select([0, 0, 1, 2, 1, 2])).tolist() == [0, 1, 2, 4], "copies are documents too"
    assert make_document_mask(batch, [0, 2]).tolist() == [True, False, False, False, True, True]
    plain = TokenBatch.from_sequences([np.zeros((2, 4))] * 3)
    assert plain.windows is None and find_documents(plain).tolist() == [0, 1, 2]
    assert count_documents(batch.select([])) == 0


def test_documents_are_numbered_and_have_a_worst_window():
    batch, scores = make_batch([1, 3, 2]), np.array([0.0, 2.0, -np.inf, -np.inf, 1.0, 0.5])
    assert number_documents(batch).tolist() == [0, 1, 1, 1, 2, 2]
    assert find_worst(scores, batch).tolist() == [0, 2, 5]
    plain = TokenBatch.from_sequences([np.zeros((2, 4))] * 3)
    assert number_documents(plain).tolist() == find_worst(scores[:3], plain).tolist() == [0, 1, 2]
    assert find_worst(scores[:0], batch.select([])).tolist() == []


def test_concatenated_documents_stay_apart():
    batch = make_batch([2, 1])
    assert count_documents(TokenBatch.concatenate([batch, batch])) == 4
    assert TokenBatch.concatenate([batch, batch]).windows.tolist() == [0, 1, 0, 0, 1, 0]


@pytest.mark.parametrize("seed", range(5))
def test_a_split_keeps_documents_whole(seed):
    batch = make_batch([1, 3, 2, 5, 1, 1, 4, 2, 2, 1])
    rest, taken = split(batch, 0.3, seed)
    assert (count_documents(rest), count_documents(taken)) == (7, 3)
    own = [set(part.select(slice(None)).values[:, 0].tolist()) for part in (rest, taken)]
    assert not own[0] & own[1] and own[0] | own[1] == set(range(10))
    assert count_documents(Subset(rest, slice(None))) == 7
    # The documents drawn are those that would be drawn if each had one window.
    plain = TokenBatch.from_sequences([np.full((1, 4), i, "f4") for i in range(10)])
    assert sorted(own[1]) == sorted(split(plain, 0.3, seed)[1].indices.tolist())


def test_windows_that_are_not_one_number_per_sequence_are_refused():
    tokens = TokenBatch.from_sequences([np.zeros((2, 4))] * 2)
    for channel, message in (
        (Ragged.from_lengths(torch.zeros(2), [1, 1]), "one int32 or int64 per sequence, got float32"),
        (Ragged.from_lengths(torch.zeros(3, dtype=torch.int32), [1, 2]), "one int32 or int64 per sequence"),
        (number([0, -1]), "from 0, got -1"),
    ):
        with pytest.raises(InputError, match=message):
            tokens.with_channels(window=channel)


def test_a_store_keeps_documents(tmp_path: Path):
    counts = [1, 3, 2, 5, 1, 1, 4, 2, 2, 1]
    batch = make_batch(counts)
    with TokenStoreWriter(tmp_path / "store", dim=4, shard_bytes=150) as writer:
        writer.append(batch)
    store = TokenStore(tmp_path / "store", channels=())
    assert len(store.index.shards) > 2 and store.windows.tolist() == batch.windows.tolist()
    assert count_documents(store) == 10 and store.channels == (WINDOW,), "it is read, whatever else is"
    read = TokenBatch.concatenate(list(store.batches(7)))
    assert read.windows.tolist() == batch.windows.tolist() and torch.equal(read.values, batch.values)
    first = 0
    for shard in store.index.shards:
        assert store.windows[first] == 0, "a shard holds whole documents"
        first += shard.sequences
    assert count_documents(split(store, 0.5, 0)[0]) == 5


def test_shards_of_documents_do_not_depend_on_batches(tmp_path: Path):
    counts = [1, 3, 2, 5, 1, 1, 4, 2, 2, 1]
    batch, indices = make_batch(counts), []
    starts = [*find_documents(batch).tolist(), len(batch)]
    for name, step in (("all", 10), ("some", 3), ("one", 1)):
        with TokenStoreWriter(tmp_path / name, dim=4, shard_bytes=150) as writer:
            for start in range(0, 10, step):
                writer.append(batch.select(slice(starts[start], starts[min(start + step, 10)])))
        indices.append(TokenStore(tmp_path / name).index)
    assert indices[0] == indices[1] == indices[2]


def test_a_store_of_before_has_one_document_per_sequence():
    store = TokenStore(Path(__file__).parents[1] / "golden" / "store")
    assert store.windows is None and count_documents(store) == len(store)


def test_an_index_whose_windows_do_not_fit_is_refused(tmp_path: Path):
    with TokenStoreWriter(tmp_path / "store", dim=4) as writer:
        writer.append(make_batch([2, 1]))
    path = tmp_path / "store" / "index.json"
    content = json.loads(path.read_text())
    content["shards"][0]["channel_rows"][WINDOW] = 2
    path.write_text(json.dumps(content))
    with pytest.raises(StoreError, match="not every sequence has a window"):
        TokenStore(tmp_path / "store")
