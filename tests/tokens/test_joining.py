"""Stores merged and split: nothing is lost, doubled or torn apart, and what does not go together is refused."""

import itertools
import re

import pytest
import torch

from apood.support.errors import InputError, StoreError
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.documents import count_documents, find_documents
from apood.tokens.joining import merge_stores, split_store
from apood.tokens.measuring import StoreStats
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter

ENCODER = {"model": "somewhere/model", "layers": "-1", "fingerprint": "abc"}


def make_batch(windows_of_documents, seed=0, dim=4):
    """Return random sequences, the windows of documents, with a channel that tells the document."""
    generator = torch.Generator().manual_seed(seed)
    numbers = [window for count in windows_of_documents for window in range(count)]
    owners = [1000 * seed + i for i, count in enumerate(windows_of_documents) for _ in range(count)]
    lengths = torch.randint(1, 6, (len(numbers),), generator=generator)
    ones = torch.ones(len(numbers), dtype=torch.int64)
    channels = {
        "window": Ragged.from_lengths(torch.tensor(numbers, dtype=torch.int32), ones),
        "owner": Ragged.from_lengths(torch.tensor(owners), ones),
    }
    values = torch.randn(int(lengths.sum()), dim, generator=generator)
    return TokenBatch(values, Ragged.from_lengths(values, lengths).offsets, channels)


def write(folder, *batches, tally=None, finished=True, **options):
    settings = {"dim": batches[0].dim, "encoder": ENCODER} | options
    writer = TokenStoreWriter(folder, **settings)
    for batch in batches:
        writer.append(batch)
    if tally:
        writer.count(**tally)
    writer.close(finished=finished)
    return folder


def read_files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_merge_is_the_store_that_one_run_would_have_written(tmp_path):
    batches = [make_batch([1, 3, 2, 1], seed=1), make_batch([2, 2], seed=2), make_batch([1, 1, 4], seed=3)]
    parts = [write(tmp_path / str(i), b, tally={"bad": i, "truncated": 1}) for i, b in enumerate(batches)]
    merged = merge_stores(parts, tmp_path / "merged")
    whole = write(tmp_path / "whole", *batches, tally={"bad": 3, "truncated": 3})
    assert read_files(tmp_path / "merged") == read_files(whole)
    assert count_documents(merged) == 9 and sorted(path.name for path in tmp_path.iterdir())[-2:] == ["merged", "whole"]


def test_a_merge_counts_nothing_that_one_store_does_not_count(tmp_path):
    parts = [write(tmp_path / "a", make_batch([1], 1), tally={"bad": 2}), write(tmp_path / "b", make_batch([1], 2))]
    assert merge_stores(parts, tmp_path / "merged").index.tally == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"encoder": ENCODER | {"fingerprint": "xyz"}}, "encoder differs: .*fingerprint abc in the first.*xyz in the"),
        ({"encoder": ENCODER | {"layers": "mix"}}, "encoder differs: layers -1 in the first, layers mix in the second"),
        ({"encoder": None}, "encoder differs: .* in the first, an unknown encoder in the second"),
        ({"dtype": torch.float16}, "dtype differs: float32 in the first, float16 in the second"),
    ],
)
def test_stores_that_do_not_go_together_are_refused_by_name(tmp_path, options, words):
    first, other = write(tmp_path / "a", make_batch([1], 1)), write(tmp_path / "b", make_batch([1], 2), **options)
    with pytest.raises(StoreError, match=f"{re.escape(str(first))} and {re.escape(str(other))} .*{words}"):
        merge_stores([first, other], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_stores_of_other_channels_or_dimensions_are_refused(tmp_path):
    first, wide = write(tmp_path / "a", make_batch([1], 1)), write(tmp_path / "b", make_batch([1], 2, dim=5))
    plain = write(tmp_path / "c", TokenBatch.from_sequences([torch.ones(2, 4)]))
    with pytest.raises(StoreError, match="dim differs: 4 in the first, 5 in the second"):
        merge_stores([first, wide], tmp_path / "merged")
    with pytest.raises(StoreError, match=r"channels differ: owner .* in the first, none in the second"):
        merge_stores([first, plain], tmp_path / "merged")


def test_the_same_sequences_are_not_merged_twice(tmp_path):
    first = write(tmp_path / "a", make_batch([1, 2], 1))
    with pytest.raises(InputError, match="hold the same sequences"):
        merge_stores([first, write(tmp_path / "copy", make_batch([1, 2], 1))], tmp_path / "merged")
    with pytest.raises(InputError, match="Two or more"):
        merge_stores([first], tmp_path / "merged")


def test_a_store_that_would_continue_a_document_is_refused(tmp_path):
    whole = make_batch([3], 1)
    parts = [write(tmp_path / "a", whole.select(slice(0, 1))), write(tmp_path / "b", whole.select(slice(1, 3)))]
    with pytest.raises(StoreError, match="begins with window 1 of a document"):
        merge_stores(parts, tmp_path / "merged")


@pytest.mark.parametrize("change", ["damaged", "unfinished"])
def test_a_store_that_cannot_be_trusted_leaves_nothing_behind(tmp_path, change):
    first = write(tmp_path / "a", make_batch([1, 2, 3], 1))
    other = write(tmp_path / "b", make_batch([1, 2], 2), finished=change != "unfinished")
    if change == "damaged":
        shard = other / "shard-00000.safetensors"
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(content)
    words = "checksum differs" if change == "damaged" else "is not complete"
    with pytest.raises(StoreError, match=words):
        merge_stores([first, other], tmp_path / "merged")
    with pytest.raises(StoreError, match=words):
        split_store(other, {"x": 1.0}, tmp_path / "parts", seed=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_split_has_every_document_once_with_all_its_windows(tmp_path):
    batch = make_batch([1, 3, 2] * 7, seed=1)
    store = TokenStore(write(tmp_path / "all", batch, shard_bytes=200))
    made = split_store(store.folder, {"train": 0.7, "held-out": 0.2, "test": 0.1}, tmp_path / "parts", seed=0)
    assert {name: count_documents(part) for name, part in made.items()} == {"train": 15, "held-out": 4, "test": 2}
    owners = [part.select(slice(None)).channels["owner"].values.tolist() for part in made.values()]
    assert all(part == sorted(part) for part in owners)  # the order of the store
    assert sorted(itertools.chain.from_iterable(owners)) == batch.channels["owner"].values.tolist()
    assert not set(owners[0]) & set(owners[1])
    for part in made.values():
        begins = part.windows[torch.from_numpy(find_documents(part))]
        assert not begins.any() and part.encoder == ENCODER
    again = split_store(store.folder, {"train": 0.7, "held-out": 0.2, "test": 0.1}, tmp_path / "again", seed=0)
    other = split_store(store.folder, {"train": 0.7, "held-out": 0.2, "test": 0.1}, tmp_path / "other", seed=1)
    assert read_files(again["train"].folder) == read_files(made["train"].folder)
    assert read_files(other["train"].folder) != read_files(made["train"].folder)


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({"a": 0.7, "b": 0.4}, "at most 1 together, got a=0.7, b=0.4"),
        ({"a": 0.0}, "must be above 0"),
        ({"a": float("nan")}, "must be above 0"),
        ({"a": 0.9, "b": 0.001}, "'b' would be empty: a share of 0.001 of 4 documents"),
        ({"../a": 0.5}, "without slashes, got '../a'"),
    ],
)
def test_shares_that_cannot_be_used_are_refused(tmp_path, shares, words):
    store = write(tmp_path / "all", make_batch([1, 2, 1, 1]))
    with pytest.raises(InputError, match=re.escape(words)):
        split_store(store, shares, tmp_path / "parts", seed=0)


def test_an_occupied_folder_is_refused(tmp_path):
    parts = [write(tmp_path / str(i), make_batch([1, 2], seed=i)) for i in (1, 2)]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "note").touch()
    with pytest.raises(InputError, match="already exists and is not empty"):
        merge_stores(parts, tmp_path / "out")
    with pytest.raises(InputError, match="already exists and is not empty"):
        split_store(parts[0], {"a": 1.0}, tmp_path / "out", seed=0)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="/file is a file: choose the name of a new folder"):
        merge_stores(parts, tmp_path / "file")


def test_stats_count_what_is_there(tmp_path):
    values = [torch.tensor([[3.0, 4.0], [0.0, float("inf")]]), torch.empty(0, 2), torch.tensor([[0.0, 7.0]])]
    store = TokenStore(write(tmp_path / "store", TokenBatch.from_sequences(values)))
    stats = StoreStats.of(store)
    assert (stats.documents, stats.sequences, stats.tokens, stats.empty, stats.not_finite) == (3, 3, 3, 1, 1)
    assert (stats.shortest, stats.median, stats.longest, stats.mean_norm) == (0, 1.0, 2, 6.0)
    empty = StoreStats.of(TokenStore(write(tmp_path / "empty", TokenBatch.from_sequences([torch.empty(0, 2)]))))
    assert empty.mean_norm is None and empty.tokens == 0
