"""The writer: killed processes, full disks, resuming, and batches that it refuses."""

import json
import os
import random
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import context

from apood.support.errors import InputError, StoreError
from apood.tokens.batch import Ragged, TokenBatch, encode_texts
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter

DIM = 8
ENCODER = {"model": "a", "layers": "3"}


def corpus(first, last):
    """Return the sequences `first` to `last`; each follows from its number."""
    sequences = [torch.full((1 + i * 7 % 5, DIM), float(i)) + torch.arange(DIM) / 16 for i in range(first, last)]
    rows = TokenBatch.from_sequences(sequences)
    return TokenBatch(rows.values, rows.offsets, {"text": encode_texts([f"no. {i}" for i in range(first, last)])})


def write_corpus(folder, count, step=3, shard_bytes=500):
    """Write the rest of a corpus of `count` sequences."""
    with TokenStoreWriter(folder, dim=DIM, encoder=ENCODER, shard_bytes=shard_bytes, resume=True) as writer:
        for first in range(writer.sequences, count, step):
            writer.append(corpus(first, min(first + step, count)))


def content(folder):
    return {p.name: p.read_bytes() for p in Path(folder).iterdir()}


def assert_is_beginning(folder):
    """Check that the store is readable and holds the first sequences of the corpus; return their number."""
    store = TokenStore(folder)
    store.verify()
    if len(store):
        found, expected = store.select(slice(None)), corpus(0, len(store))
        assert torch.equal(found.values, expected.values) and torch.equal(found.offsets, expected.offsets)
        assert torch.equal(found.channels["text"].values, expected.channels["text"].values)
    return len(store)


def start(work, *arguments):
    process = context.Process(target=work, args=arguments)
    process.start()
    return process


# Killed processes.


def test_killed_at_random_moments(tmp_path):
    folder, count = tmp_path / "store", 300
    moments = random.Random(7)
    committed = [0]
    for _ in range(8):
        shards = len(list(folder.glob("shard-*"))) + moments.randint(0, 8)
        process = start(write_corpus, folder, count)
        while process.is_alive() and len(list(folder.glob("shard-*"))) < shards:
            time.sleep(0.001)
        time.sleep(moments.uniform(0.0, 0.02))
        process.kill()
        process.join()
        if (folder / "index.json").exists():
            committed.append(assert_is_beginning(folder))
    assert committed == sorted(committed), "a shard that was committed is gone"
    assert len({n for n in committed if 0 < n < count}) >= 3, "the kills did not fall into the writing"
    write_corpus(folder, count)
    write_corpus(tmp_path / "uninterrupted", count)
    assert content(folder) == content(tmp_path / "uninterrupted")


def _write_and_die(folder, count, operation):
    """Kill the process right before its `operation`-th file operation in the folder."""
    seen = 0

    def count_operations(event, arguments):
        nonlocal seen
        if event in ("open", "os.rename", "os.remove", "os.mkdir") and str(folder) in str(arguments[0]):
            seen += 1
            if seen == operation:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count_operations)
    write_corpus(folder, count)


def test_killed_before_every_single_file_operation(tmp_path):
    count = 12
    write_corpus(tmp_path / "uninterrupted", count)
    expected = content(tmp_path / "uninterrupted")
    assert len(expected) == 4  # an index and three shards
    left = set()
    for operation in range(1, 1000):
        folder = tmp_path / f"killed-{operation}"
        process = start(_write_and_die, folder, count, operation)
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        if (folder / "index.json").exists():
            left.add(assert_is_beginning(folder))
        write_corpus(folder, count)
        assert content(folder) == expected
    assert operation > 20 and len(left) == 4  # nothing, one, two and three shards


def _write_slowly(folder, seconds):
    with TokenStoreWriter(folder, dim=DIM, encoder=ENCODER, commit_seconds=seconds, resume=True) as writer:
        for first in range(writer.sequences, 10**6):
            writer.append(corpus(first, first + 1))
            time.sleep(0.005)


def test_a_killed_process_keeps_what_it_wrote_before_the_last_commit_by_time(tmp_path):
    folder, committed = tmp_path / "store", 0
    for _ in range(2):  # the second writer resumes after the shards of the first
        process = start(_write_slowly, folder, 0.05)
        while not (folder / "index.json").exists() or len(TokenStore(folder)) < committed + 20:
            assert process.is_alive()
            time.sleep(0.01)
        process.kill()
        process.join()
        before, committed = committed, assert_is_beginning(folder)
        assert committed >= before + 20
    assert 2 <= len(TokenStore(folder).index.shards) < committed


def test_shards_depend_on_the_sequences_alone_unless_the_time_is_up(tmp_path):
    for name, seconds in (("by size", float("inf")), ("by time", 0)):
        with TokenStoreWriter(
            tmp_path / name, dim=DIM, encoder=ENCODER, shard_bytes=500, commit_seconds=seconds
        ) as writer:
            for first in range(0, 9, 3):
                writer.append(corpus(first, first + 3))
    write_corpus(tmp_path / "default", 9)
    assert content(tmp_path / "by size") == content(tmp_path / "default")
    assert assert_is_beginning(tmp_path / "by time") == 9
    ends = np.cumsum([shard.sequences for shard in TokenStore(tmp_path / "by time").index.shards])
    assert {3, 6, 9} <= set(ends.tolist()), "every batch was committed"


# Disks that cannot be written.


def _write_until_full(sender, folder):
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    try:
        with TokenStoreWriter(folder, dim=DIM, encoder=ENCODER, shard_bytes=15_000) as writer:
            for first in range(0, 400, 100):
                writer.append(corpus(first, first + 100))
            # This batch makes the next shard larger than the limit.
            writer.append(TokenBatch(torch.ones(900, DIM), torch.tensor([0, 900]), {"text": encode_texts(["long"])}))
    except StoreError as error:
        sender.send(str(error))


def test_a_full_disk_costs_no_committed_shard(tmp_path):
    folder = tmp_path / "store"
    receiver, sender = context.Pipe(duplex=False)
    process = start(_write_until_full, sender, folder)
    sentence = receiver.recv()
    process.join()
    assert f"The token store {folder} cannot be written: " in sentence and "File too large" in sentence
    assert not [name for name in content(folder) if "partial" in name]
    assert 0 < assert_is_beginning(folder) < 401
    write_corpus(folder, 420, shard_bytes=15_000)
    assert assert_is_beginning(folder) == 420


def test_after_a_failed_commit_the_writer_takes_nothing_more(tmp_path):
    folder = tmp_path / "store"
    with TokenStoreWriter(folder, dim=DIM, encoder=ENCODER, shard_bytes=10**6) as writer:
        writer.append(corpus(0, 4))
        (folder / "shard-00000.safetensors").mkdir()  # no file can take this place
        with pytest.raises(StoreError, match="cannot be written"):
            writer.close()
        with pytest.raises(StoreError, match="closed"):
            writer.append(corpus(4, 5))
    assert len(TokenStore(folder)) == 0


def test_shards_after_one_that_failed_are_not_committed(tmp_path):
    """Several are written at once: those before it are in the store, those after it are not."""
    folder = tmp_path / "store"
    writer = TokenStoreWriter(folder, dim=DIM, encoder=ENCODER, shard_bytes=500)
    (folder / "shard-00002.safetensors").mkdir()
    with pytest.raises(StoreError, match="cannot be written"):
        writer.append(corpus(0, 200))
    with pytest.raises(StoreError, match="closed"):
        writer.append(corpus(200, 201))
    assert writer.sequences == assert_is_beginning(folder) and len(TokenStore(folder).index.shards) == 2
    (folder / "shard-00002.safetensors").rmdir()
    write_corpus(folder, 200)
    write_corpus(tmp_path / "uninterrupted", 200)
    assert content(folder) == content(tmp_path / "uninterrupted")


def test_shards_in_writing_survive_an_interrupt(tmp_path):
    folder = tmp_path / "store"
    with (
        pytest.raises(KeyboardInterrupt),
        TokenStoreWriter(folder, dim=DIM, encoder=ENCODER, shard_bytes=500) as writer,
    ):
        writer.append(corpus(0, 41))
        raise KeyboardInterrupt
    committed = assert_is_beginning(folder)
    write_corpus(tmp_path / "uninterrupted", 41)
    shards = TokenStore(tmp_path / "uninterrupted").index.shards
    assert committed == writer.sequences == 41 - shards[-1].sequences, "all but the open one"
    write_corpus(folder, 41)
    assert content(folder) == content(tmp_path / "uninterrupted")


@pytest.mark.parametrize("place", ["file/store", "file", "/proc/self"])
def test_an_unwritable_place_is_refused(tmp_path, place):
    (tmp_path / "file").write_text("not a folder")
    folder = tmp_path / place
    with pytest.raises(StoreError, match=str(folder)):
        TokenStoreWriter(folder, dim=DIM)


# Starting, closing, resuming.


def test_an_error_in_the_block_leaves_the_committed_shards(tmp_path):
    folder = tmp_path / "store"
    with (
        pytest.raises(ZeroDivisionError),
        TokenStoreWriter(folder, dim=DIM, encoder=ENCODER, shard_bytes=500) as writer,
    ):
        writer.append(corpus(0, 6))
        committed = writer.sequences
        assert 0 < committed < 6
        1 / 0  # noqa: B018
    assert assert_is_beginning(folder) == committed
    write_corpus(folder, 9)
    assert assert_is_beginning(folder) == 9


@pytest.mark.parametrize("step", [1, 50])
def test_shards_do_not_depend_on_the_batches(tmp_path, step):
    write_corpus(tmp_path / "threes", 50)
    write_corpus(tmp_path / "other", 50, step=step)
    assert len(content(tmp_path / "threes")) > 5
    assert content(tmp_path / "threes") == content(tmp_path / "other")


def test_the_shard_size_is_kept(tmp_path):
    write_corpus(tmp_path / "store", 200, step=200, shard_bytes=3000)
    sizes = [len(data) for name, data in sorted(content(tmp_path / "store").items()) if name.startswith("shard")]
    longest = 5 * DIM * 4 + 32
    assert len(sizes) > 3 and all(3000 <= size < 3000 + 1000 + longest for size in sizes[:-1])  # 1000: the header


def test_sequences_counts_what_is_committed(tmp_path):
    with TokenStoreWriter(tmp_path / "store", dim=DIM, shard_bytes=10**6) as writer:
        writer.append(corpus(0, 5))
        assert writer.sequences == 0 and len(TokenStore(tmp_path / "store")) == 0
    assert writer.sequences == 5 and len(TokenStore(tmp_path / "store")) == 5
    writer.close()
    assert writer.sequences == 5


def test_counts_are_committed_with_the_sequences_they_are_about(tmp_path):
    folder = tmp_path / "store"
    with TokenStoreWriter(folder, dim=DIM, shard_bytes=500) as writer:
        assert writer.tally == {} and "tally" not in json.loads((folder / "index.json").read_text())
        seen = set()
        for first in range(0, 12, 3):
            writer.append(corpus(first, first + 3))
            writer.count(odd=first)
            tally = writer.tally
            assert tally == TokenStore(folder).index.tally and tally.get("sequences", 0) <= writer.sequences
            assert tally == {} or tally["odd"] == tally["sequences"] - 3
            seen.add(tally.get("sequences"))
    assert len(seen) > 2
    assert TokenStore(folder).index.tally == {"sequences": 12, "odd": 9}
    with TokenStoreWriter(folder, dim=DIM, shard_bytes=500, resume=True) as writer:
        assert writer.tally == {"sequences": 12, "odd": 9}
        writer.count(odd=10, even=1)
    assert TokenStore(folder).index.tally == {"sequences": 12, "odd": 10, "even": 1}


def test_a_store_is_unfinished_until_its_writer_is_closed(tmp_path):
    folder = tmp_path / "store"

    def unfinished():
        return TokenStore(folder).index.unfinished

    with TokenStoreWriter(folder, dim=DIM, shard_bytes=500) as writer:
        assert unfinished()
        writer.append(corpus(0, 12))
    assert not unfinished()
    with pytest.raises(KeyError), TokenStoreWriter(folder, dim=DIM, shard_bytes=500, resume=True):
        raise KeyError
    assert not unfinished(), "nothing was added"
    with pytest.raises(KeyError), TokenStoreWriter(folder, dim=DIM, shard_bytes=500, resume=True) as writer:
        writer.append(corpus(12, 24))
        raise KeyError
    assert unfinished()
    writer = TokenStoreWriter(folder, dim=DIM, shard_bytes=500, resume=True)
    writer.close(finished=False)
    assert unfinished()
    TokenStoreWriter(folder, dim=DIM, shard_bytes=500, resume=True).close()
    assert not unfinished()


def test_another_thread_may_write(tmp_path):
    def write():
        for first in range(0, 50, 3):
            writer.append(corpus(first, min(first + 3, 50)))

    with TokenStoreWriter(tmp_path / "threaded", dim=DIM, encoder=ENCODER, shard_bytes=500) as writer:
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    write_corpus(tmp_path / "plain", 50)
    assert content(tmp_path / "threaded") == content(tmp_path / "plain")


def test_the_encoder_is_known_before_the_first_sequence(tmp_path):
    with TokenStoreWriter(tmp_path / "store", dim=DIM, encoder=ENCODER):
        assert TokenStore(tmp_path / "store").encoder == ENCODER
    assert TokenStore(tmp_path / "store").encoder == ENCODER


def test_resuming_deletes_leftovers(tmp_path):
    folder = tmp_path / "store"
    write_corpus(folder, 10)
    expected = content(folder)
    (folder / "shard-00099.safetensors").write_bytes(b"orphan")
    (folder / "index.json.partial-01234567").write_bytes(b"half")
    (folder / "notes.txt").write_bytes(b"not ours")
    write_corpus(folder, 10)
    assert content(folder) == expected | {"notes.txt": b"not ours"}


def test_an_existing_store_is_not_overwritten(tmp_path):
    write_corpus(tmp_path / "store", 10)
    expected = content(tmp_path / "store")
    with pytest.raises(StoreError, match=r"already a token store.*resume=True"):
        TokenStoreWriter(tmp_path / "store", dim=DIM)
    assert content(tmp_path / "store") == expected


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dim": 9}, "dim: it has 8, got 9"),
        ({"dtype": torch.float16}, "dtype: it has float32, got float16"),
        ({"encoder": None}, "it has model a, layers 3, got an unknown encoder"),
        ({"encoder": ENCODER | {"layers": "4"}}, "it has layers 3, got layers 4."),
        ({"encoder": ENCODER | {"template": "a {text}"}}, "it has no template, got template a {text}."),
    ],
)
def test_resuming_with_other_settings_is_refused(tmp_path, options, sentence):
    write_corpus(tmp_path / "store", 10)
    expected = content(tmp_path / "store")
    with pytest.raises(StoreError, match=sentence):
        TokenStoreWriter(tmp_path / "store", **{"dim": DIM, "encoder": ENCODER, "resume": True} | options)
    assert content(tmp_path / "store") == expected
    write_corpus(tmp_path / "store", 12)  # the refused writer holds no lock


def test_a_model_in_another_folder_is_the_same_encoder(tmp_path):
    for place in ("here", "there"):
        encoder = {"model": place, "fingerprint": "abc", "folder": f"/{place}"}
        TokenStoreWriter(tmp_path / "store", dim=DIM, encoder=encoder, resume=True).close()
    assert TokenStore(tmp_path / "store").encoder == {"model": "here", "fingerprint": "abc", "folder": "/here"}


def test_a_damaged_store_is_not_resumed(tmp_path):
    write_corpus(tmp_path / "store", 10)
    os.truncate(tmp_path / "store" / "shard-00001.safetensors", 10)
    with pytest.raises(StoreError, match=r"shard-00001.*cut off"):
        write_corpus(tmp_path / "store", 20)


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"somebody's")
    with pytest.raises(StoreError, match=r"holds 'model\.safetensors'"):
        TokenStoreWriter(tmp_path, dim=DIM, resume=True)
    assert content(tmp_path) == {"model.safetensors": b"somebody's"}


def _hold(sender, folder):
    with TokenStoreWriter(folder, dim=DIM):
        sender.send("writing")
        signal.pause()


def test_two_writers_at_once(tmp_path):
    folder = tmp_path / "store"
    with TokenStoreWriter(folder, dim=DIM), pytest.raises(StoreError, match=f"Another writer is at work on .*{folder}"):
        TokenStoreWriter(folder, dim=DIM, resume=True)
    receiver, sender = context.Pipe(duplex=False)
    process = start(_hold, sender, tmp_path / "held")
    receiver.recv()
    with pytest.raises(StoreError, match="Another writer"):
        TokenStoreWriter(tmp_path / "held", dim=DIM, resume=True)
    process.kill()
    process.join()
    TokenStoreWriter(tmp_path / "held", dim=DIM, resume=True).close()


# Invalid batches and arguments.


def with_channel(values, name="labels"):
    rows = TokenBatch.from_sequences([torch.ones(2, DIM)])
    return TokenBatch(rows.values, rows.offsets, {name: Ragged.from_lengths(values, [len(values)])})


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        (TokenBatch.from_sequences([torch.ones(2, 5)]), "takes tokens of D=8, got D=5"),
        (TokenBatch.from_sequences([torch.ones(2, DIM)]), r"have the channels labels \(int64\), got none"),
        (with_channel(torch.ones(1)), r"have the channels labels \(int64\), got labels \(float32\)"),
        (with_channel(torch.ones(1, 2).long()), r"got labels \(int64 of shape \[2\]\)"),
        (with_channel(torch.ones(1, dtype=torch.complex128)), "'labels' cannot be stored as complex128"),
    ],
)
def test_batches_that_differ_from_earlier_ones_are_refused(tmp_path, batch, sentence):
    good = with_channel(torch.ones(1).long())
    with TokenStoreWriter(tmp_path / "store", dim=DIM) as writer:
        writer.append(good)
        with pytest.raises(InputError, match=sentence):
            writer.append(batch)
        writer.append(good)
    assert len(TokenStore(tmp_path / "store")) == 2
    with (
        TokenStoreWriter(tmp_path / "store", dim=DIM, resume=True) as writer,
        pytest.raises(InputError, match=sentence),
    ):
        writer.append(batch)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_tokens_are_cast_to_the_dtype_of_the_store(tmp_path, dtype):
    batch = TokenBatch.from_sequences([torch.randn(3, DIM), torch.empty(0, DIM)])
    with TokenStoreWriter(tmp_path / "store", dim=DIM, dtype=dtype) as writer:
        writer.append(batch)
    store = TokenStore(tmp_path / "store")
    assert store.dtype == dtype and torch.equal(store.select([0]).values, batch.values.to(dtype))


def test_tokens_beyond_the_range_of_the_dtype_are_refused(tmp_path):
    with TokenStoreWriter(tmp_path / "store", dim=2, dtype=torch.float16) as writer:
        with pytest.raises(InputError, match=r"magnitude 7e\+04 become infinite as float16"):
            writer.append(TokenBatch.from_sequences([torch.tensor([[0.0, -7e4]])]))
        with pytest.raises(InputError, match="become infinite as float16"):
            writer.append(TokenBatch.from_sequences([torch.tensor([[0.0, 65520.0]])]))
        writer.append(TokenBatch.from_sequences([torch.tensor([[65504.0, float("nan")]])]))
        writer.append(TokenBatch.from_sequences([torch.tensor([[-65519.0, 0.0]])]))  # it is rounded down
    store = TokenStore(tmp_path / "store")
    assert len(store) == 2 and store.select([1]).values.tolist() == [[-65504.0, 0.0]]


def test_a_batch_may_be_changed_after_it_was_appended(tmp_path):
    values, offsets = torch.ones(2, DIM), torch.tensor([0, 2])
    with TokenStoreWriter(tmp_path / "store", dim=DIM) as writer:
        for number in range(3):
            values.fill_(number)
            writer.append(TokenBatch(values, offsets))
    assert TokenStore(tmp_path / "store").select(slice(None)).values[::2, 0].tolist() == [0.0, 1.0, 2.0]


def test_gradients_and_strides_do_not_matter(tmp_path):
    values = torch.randn(DIM, 6, requires_grad=True).t()
    with TokenStoreWriter(tmp_path / "store", dim=DIM) as writer:
        writer.append(TokenBatch(values, torch.tensor([0, 6])))
    assert torch.equal(TokenStore(tmp_path / "store").select([0]).values, values)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dim": 0}, "at least 1, got dim=0"),
        ({"shard_bytes": 0}, "shard_bytes=0"),
        ({"commit_seconds": float("nan")}, "commit_seconds must not be negative, got nan"),
        ({"dtype": torch.int64}, "stored as float16, .*, got torch.int64"),
        ({"encoder": {"model": np.float32(1)}}, "An encoder identity must be plain JSON"),
    ],
)
def test_invalid_arguments_are_refused(tmp_path, options, sentence):
    with pytest.raises(InputError, match=sentence):
        TokenStoreWriter(tmp_path / "store", **{"dim": DIM} | options)
    assert not (tmp_path / "store").exists()
