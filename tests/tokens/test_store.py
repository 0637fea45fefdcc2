"""Token stores: what is read is what was written, damage is found, memory stays bounded."""

import hashlib
import json
import multiprocessing
import os
import pickle
import re
import resource
import time
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from apood import KNN
from apood.support.errors import InputError, StoreError
from apood.tokens.batch import FLOAT_DTYPES, Ragged, TokenBatch, encode_texts
from apood.tokens.source import Subset, TokenSource, as_source
from apood.tokens.store import STORED_DTYPES, TokenStore
from apood.tokens.writer import TokenStoreWriter

MIB = 2**20
CHANNELS = ("input_ids", "text", "logits", "output_logprobs")
ENCODER = {"model": "somewhere/model", "layer": -1, "mode": None, "truncated": True}


def random_batch(lengths, dim=5, dtype=torch.float32, seed=0):
    """Return random tokens with channels of one row per token, one row per sequence, or any number of rows."""
    generator = torch.Generator().manual_seed(seed)
    count, tokens = len(lengths), sum(lengths)
    rows = Ragged.from_lengths(torch.randn(tokens, dim, generator=generator).to(dtype), lengths)
    texts = ["äöü€ "[: i % 6] * (i % 3) for i in range(count)]
    channels = {
        "input_ids": Ragged.from_lengths(torch.randint(0, 999, (tokens,), generator=generator), lengths),
        "text": encode_texts(texts),
        "logits": Ragged.from_lengths(torch.randn(count, 7, generator=generator).half(), [1] * count),
        "output_logprobs": Ragged.from_lengths(torch.randn(2 * count, generator=generator), [2] * count),
    }
    return TokenBatch(rows.values, rows.offsets, channels)


def write(folder, *batches, **options):
    options = {"dim": batches[0].dim, "dtype": batches[0].dtype} | options
    with TokenStoreWriter(folder, **options) as writer:
        for batch in batches:
            writer.append(batch)
    return TokenStore(folder)


def bits(ragged):
    return ragged.values.contiguous().flatten().view(torch.uint8)


def assert_same(found, expected):
    assert found.values.dtype == expected.values.dtype and found.values.shape == expected.values.shape
    assert torch.equal(bits(found), bits(expected)) and torch.equal(found.offsets, expected.offsets)
    if isinstance(expected, TokenBatch):
        assert set(found.channels) == set(expected.channels)
        for name, channel in expected.channels.items():
            assert_same(found.channels[name], channel)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.sampled_from(FLOAT_DTYPES),
    st.integers(1, 700),
    st.integers(1, 40),
    st.data(),
)
def test_a_store_is_the_batch_it_was_written_from(tmp_path_factory, lengths, dtype, shard_bytes, budget, data):
    batch = random_batch(lengths, dtype=dtype)
    cut = data.draw(st.integers(0, len(lengths)))
    folder = tmp_path_factory.mktemp("store")
    store = write(folder, batch[:cut], batch[cut:], shard_bytes=shard_bytes, encoder=ENCODER)

    assert isinstance(store, TokenSource) and as_source(store) is store
    assert (len(store), store.tokens, store.dim, store.dtype) == (len(batch), sum(lengths), 5, dtype)
    assert store.encoder == ENCODER and store.folder == folder and set(store.channels) == set(batch.channels)
    assert torch.equal(store.lengths, batch.lengths)
    store.verify()
    assert_same(store.select(slice(None)), batch)

    picks = data.draw(st.lists(st.integers(-len(lengths), len(lengths) - 1), max_size=20))
    assert_same(store.select(picks), batch.select(picks))
    piece = data.draw(st.slices(len(lengths)))
    assert_same(store.select(piece), batch.select(piece))
    keep = batch.lengths > 3
    assert_same(store.select(keep), batch.select(keep))

    parts = list(store.batches(budget))
    assert [len(p) for p in parts] == [len(p) for p in batch.batches(budget)]
    assert all(len(p.values) <= budget or len(p) == 1 for p in parts)
    assert_same(TokenBatch.concatenate(parts), batch)


@pytest.mark.parametrize("dtype", STORED_DTYPES, ids=str)
def test_channels_of_every_dtype_and_shape(tmp_path, dtype):
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (6 * 12 * dtype.itemsize,), dtype=torch.uint8)
    values = raw.view(dtype).reshape(6, 4, 3)
    channels = {
        "cube": Ragged.from_lengths(values, [1, 0, 5]),
        "flat ünïcode.values": Ragged.from_lengths(values[:, 0, 0].contiguous(), [0, 0, 6]),
        "none": Ragged.from_lengths(values[:0], [0, 0, 0]),
        "hollow": Ragged.from_lengths(torch.empty(3, 0, dtype=dtype), [1, 1, 1]),
    }
    tokens = Ragged.from_lengths(torch.randn(4, 2), [1, 1, 2])
    batch = TokenBatch(tokens.values, tokens.offsets, channels)
    store = write(tmp_path / "store", batch, shard_bytes=1)
    assert len(list((tmp_path / "store").glob("shard-*"))) == 3
    assert_same(store.select([0, 1, 2]), batch)
    assert_same(store.select([2, 0]), batch.select([2, 0]))


def test_shards_are_plain_safetensors(tmp_path):
    batch = random_batch([3, 0, 2], dtype=torch.bfloat16)
    write(tmp_path / "store", batch)
    tensors = load_file(tmp_path / "store" / "shard-00000.safetensors")
    expected = {"values": batch.values, "offsets": batch.offsets}
    for name, channel in batch.channels.items():
        expected |= {f"channel.{name}.values": channel.values, f"channel.{name}.offsets": channel.offsets}
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def test_the_index_says_what_is_there(tmp_path):
    write(tmp_path / "store", random_batch([3, 1], dtype=torch.float16), encoder=ENCODER, shard_bytes=1)
    index = json.loads((tmp_path / "store" / "index.json").read_text())
    assert {name: index[name] for name in ("schema", "dim", "dtype", "sequences", "tokens", "encoder")} == {
        "schema": 1,
        "dim": 5,
        "dtype": "float16",
        "sequences": 2,
        "tokens": 4,
        "encoder": ENCODER,
    }
    assert index["channels"]["logits"] == {"dtype": "float16", "shape": [7]}
    first = index["shards"][0]
    assert (first["file"], first["sequences"], first["tokens"]) == ("shard-00000.safetensors", 1, 3)
    assert first["bytes"] == (tmp_path / "store" / first["file"]).stat().st_size


def test_only_the_named_channels_are_read(tmp_path):
    batch = random_batch([3, 1])
    write(tmp_path / "store", batch)
    store = TokenStore(tmp_path / "store", channels=["text"])
    assert store.channels == ("text",) and set(store.select([0]).channels) == {"text"}
    assert TokenStore(tmp_path / "store", channels=[]).select([1]).channels == {}
    with pytest.raises(InputError, match=r"has no channel 'labels'; it has \['input_ids', 'logits'"):
        TokenStore(tmp_path / "store", channels=["labels"])


def test_batches_may_be_changed(tmp_path):
    batch = random_batch([3, 2])
    store = write(tmp_path / "store", batch)
    store.select([0]).values.zero_()
    for part in store.batches(100):
        part.values.zero_()
    assert_same(store.select([0, 1]), batch)
    store.verify()


def test_an_empty_store_opens(tmp_path):
    store = write(tmp_path / "store", random_batch([1])[:0], encoder=ENCODER)
    assert (len(store), store.tokens, store.encoder) == (0, 0, ENCODER)
    assert list(store.batches(10)) == [] and store.select([]).values.shape == (0, 5)
    store.verify()


def test_a_store_travels_to_another_process(tmp_path):
    batch = random_batch([3, 1])
    store = pickle.loads(pickle.dumps(write(tmp_path / "store", batch)))
    assert_same(store.select([0, 1]), batch)
    assert "sequences=2, tokens=4, dim=5" in repr(store)


def test_selections_are_checked_like_those_of_a_batch(tmp_path):
    store = write(tmp_path / "store", random_batch([3, 1]))
    with pytest.raises(InputError, match=r"must lie in \[-2, 2\)"):
        store.select([2])
    with pytest.raises(InputError, match="budget must be at least 1"):
        list(store.batches(0))


# Damaged stores.


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "store", random_batch([3, 3, 3, 3]), shard_bytes=1)
    return tmp_path / "store"


def refusal(folder):
    with pytest.raises(StoreError) as caught:
        TokenStore(folder).verify()
    return str(caught.value)


def flip(path, position):
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def change_index(folder, **changes):
    path = folder / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_missing_shard(folder):
    (folder / "shard-00002.safetensors").unlink()
    assert re.search(r"Shard shard-00002.safetensors of the token store .*store is missing\.", refusal(folder))


def test_a_shard_cut_off(folder):
    path = folder / "shard-00001.safetensors"
    os.truncate(path, path.stat().st_size - 1)
    assert "shard-00001" in refusal(folder) and "cut off" in refusal(folder)
    os.truncate(path, 0)
    assert "shard-00001" in refusal(folder)


def test_swapped_shards(tmp_path):
    folder = tmp_path / "store"
    write(folder, TokenBatch.from_sequences([torch.randn(3, 5) for _ in range(4)]), shard_bytes=1)
    first, second = folder / "shard-00001.safetensors", folder / "shard-00002.safetensors"
    assert first.stat().st_size == second.stat().st_size
    first.rename(folder / "aside")
    second.rename(first)
    (folder / "aside").rename(second)
    assert "Shard shard-00001.safetensors" in refusal(folder) and "damaged or replaced" in refusal(folder)


def test_a_shard_of_another_store(folder, tmp_path):
    other = tmp_path / "other"
    write(other, random_batch([3, 3, 3, 3], dtype=torch.float32, seed=1), shard_bytes=1)
    (other / "shard-00003.safetensors").replace(folder / "shard-00003.safetensors")
    TokenStore(folder)
    assert "shard-00003" in refusal(folder) and "checksum" in refusal(folder)


@pytest.mark.parametrize("position", [3, 200])
def test_a_changed_header(folder, position):
    flip(folder / "shard-00000.safetensors", position)
    assert "shard-00000" in refusal(folder) and "damaged or replaced" in refusal(folder)


READS = {
    "batches": lambda store: list(store.batches(100)),
    "select": lambda store: store.select([number for number in range(4) if number != 2]),
    "subset": lambda store: Subset(store, [3, 1, 0]).select(slice(None)),
    "fit": lambda store: KNN(k=1).fit(store),
    "score": lambda store: KNN(k=1).fit(random_batch([9] * 20)).score_samples(store),
}


@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_one_changed_bit_is_found_by_the_first_read(folder, read, number):
    flip(folder / f"shard-0000{number}.safetensors", -3)
    store = TokenStore(folder)
    assert len(store.select([2])) == 1, "the other shards can be read"
    for _ in range(2):
        with pytest.raises(StoreError, match=f"Shard shard-0000{number}.*checksum differs from the index"):
            read(store)
    read(TokenStore(folder, verify=False))
    with pytest.raises(StoreError, match="checksum"):
        TokenStore(folder, verify=False).verify()


def test_a_shard_is_verified_once_in_a_process_and_again_after_a_change(folder, monkeypatch):
    read = []
    digest = hashlib.file_digest
    monkeypatch.setattr(
        hashlib, "file_digest", lambda file, name: read.append(Path(file.name).name) or digest(file, name)
    )
    store = TokenStore(folder)
    assert read == []
    store.select([1])
    assert read == ["shard-00001.safetensors"]
    for each in (store, TokenStore(folder), TokenStore(folder, channels=["text"]), pickle.loads(pickle.dumps(store))):
        list(each.batches(3))
    assert sorted(read) == [f"shard-0000{number}.safetensors" for number in range(4)]
    path = folder / "shard-00001.safetensors"
    content = path.read_bytes()
    time.sleep(0.02)  # the clock of the file system may be this coarse
    flip(path, -3)
    with pytest.raises(StoreError, match=r"shard-00001.*checksum"):
        store.select([1])
    time.sleep(0.02)
    path.write_bytes(content)
    store.select([1])


@pytest.mark.parametrize("name", ["offsets", "channel.text.offsets"])
def test_changed_offsets(folder, name):
    path = folder / "shard-00001.safetensors"
    content = bytearray(path.read_bytes())
    header_bytes = int.from_bytes(content[:8], "little")
    start = 8 + header_bytes + json.loads(content[8 : 8 + header_bytes])[name]["data_offsets"][0]
    content[start] = 7
    path.write_bytes(content)
    with pytest.raises(StoreError, match=f"shard-00001.* is damaged: '{name}' do not rise from 0"):
        TokenStore(folder, verify=False).select([1])


def test_a_shard_that_vanishes_after_opening(folder):
    store = TokenStore(folder)
    (folder / "shard-00001.safetensors").unlink()
    assert len(store.select([0, 2])) == 2
    with pytest.raises(StoreError, match=r"shard-00001.* is missing"):
        store.select([1])
    with pytest.raises(StoreError, match=r"shard-00001.* is missing"):
        store.verify()


def test_a_newer_schema(folder):
    change_index(folder, schema=2)
    assert "made by a newer apood: its schema is 2, this version reads up to 1" in refusal(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": "one"},
        {"dtype": "float31"},
        {"sequences": 3},
        {"tokens": 11},
        {"channels": {}},
        {"shards": [{}]},
        {"dim": None},
        {"dim": 1e400},
        {"dim": 10**30},
        {"dim": True},
        {"encoder": "a"},
        {"tally": {"bad": 1e400}},
        {"channels": {name: {"dtype": "float32", "shape": [2**40, 2**40]} for name in CHANNELS}},
        {"channels": {name: {"dtype": "float32", "shape": ["a"]} for name in CHANNELS}},
    ],
)
def test_a_damaged_index(folder, changes):
    change_index(folder, **changes)
    assert "index.json" in refusal(folder) and "is damaged or does not belong to a token store" in refusal(folder)


@pytest.mark.parametrize("name", ["sequences", "tokens", "bytes", "sha256", "channel_rows"])
@pytest.mark.parametrize("value", [None, -1, 2.5, 10**30, "a", [], {"text": None}], ids=str)
def test_a_damaged_entry_of_a_shard(folder, name, value):
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0][name] = value
    change_index(folder, **index)
    assert "index" in refusal(folder)


@pytest.mark.parametrize("value", ["[" * 100_000, "[" * 100_000 + "]" * 100_000, "9" * 5000])
def test_an_index_that_python_cannot_read(folder, value):
    text = (folder / "index.json").read_text()
    (folder / "index.json").write_text(text.replace('"schema": 1', f'"schema": {value}'))
    assert "index.json" in refusal(folder) and "cannot be read" in refusal(folder)


def test_an_index_that_lists_a_file_outside_the_folder(folder):
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["file"] = "../shard-00000.safetensors"
    change_index(folder, **index)
    assert "not numbered from 0" in refusal(folder)


def test_an_index_with_another_dim(folder):
    change_index(folder, dim=4)
    assert "shard-00000" in refusal(folder)


def test_folders_and_files_that_are_no_store(folder, tmp_path):
    assert refusal(tmp_path) == f"{tmp_path} is not a token store: there is no index.json in it."
    assert refusal(folder / "index.json") == f"{folder / 'index.json'} is not a token store: it is not a folder."
    for nowhere in (tmp_path / "nowhere", folder / "index.json" / "below"):
        assert refusal(nowhere) == f"There is no token store {str(nowhere)!r}: nothing is at that path."
    for text in ("", "{", "\xff"):
        (folder / "index.json").write_bytes(text.encode("latin-1"))
        assert "index.json" in refusal(folder) and "cannot be read" in refusal(folder)
    for text in ("[]", "3", "{}", "null"):
        (folder / "index.json").write_text(text)
        assert "does not belong to a token store" in refusal(folder)


# Memory and file descriptors, measured in a separate process.


def peak():
    """Return the peak resident memory of this process in bytes, with mapped pages."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


def in_a_process(work, *arguments):
    """Run `work` in a new process, which starts quickly because its server has imported the modules."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["apood.tokens.writer", "apood.tokens.store", "pytest"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, work, arguments))
    process.start()
    sender.close()
    try:
        result = receiver.recv()
    finally:
        process.join()
    assert process.exitcode == 0
    return result


def _send(sender, work, arguments):
    torch.set_num_threads(1)
    sender.send(work(*arguments))


def _write_much(folder, total, shard_bytes):
    batch = TokenBatch.from_padded(torch.randn(16, 64, 512).bfloat16())
    before = peak()
    with TokenStoreWriter(folder, dim=512, dtype=torch.bfloat16, shard_bytes=shard_bytes) as writer:
        for _ in range(total // (16 * 64 * 512 * 2)):
            writer.append(batch)
    return peak() - before


def _read_all(folder):
    store = TokenStore(folder)
    before = peak()
    tokens = sum(len(batch.values) for batch in store.batches(2048))
    picks = torch.randperm(len(store), generator=torch.Generator().manual_seed(0))
    for some in picks.split(16):
        store.select(some)
    return peak() - before, tokens


@pytest.mark.parametrize("shard_bytes", [4 * MIB, 256 * MIB], ids=["small shards", "one shard"])
def test_memory_stays_bounded(tmp_path, shard_bytes):
    total = 128 * MIB
    written = in_a_process(_write_much, tmp_path / "store", total, shard_bytes)
    assert written < min(total, 5 * shard_bytes) + 24 * MIB  # the open shard and four that are being written
    grown, tokens = in_a_process(_read_all, tmp_path / "store")
    assert tokens * 512 * 2 == total
    assert grown < 48 * MIB


def _read_with_few_descriptors(folder):
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    store = TokenStore(folder)
    return len(store.select(slice(None))), len(list(Path("/proc/self/fd").iterdir()))


def test_many_shards_need_few_descriptors(tmp_path):
    write(tmp_path / "store", random_batch([1] * 60), shard_bytes=1)
    sequences, descriptors = in_a_process(_read_with_few_descriptors, tmp_path / "store")
    assert sequences == 60 and descriptors < 20


def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(folder):
    shard, index = folder / "shard-00001.safetensors", folder / "index.json"
    shard.unlink()
    os.mkfifo(shard)
    with pytest.raises(StoreError, match=r"shard-00001.* only regular files are read"):
        TokenStore(folder).select([1])
    index.unlink()
    os.mkfifo(index)
    assert "only regular files are read" in refusal(folder)
