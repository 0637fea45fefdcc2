"""Portions of records: equal to a simple loop, errors in the order of the records, and resuming."""

import contextlib
import functools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import context
from word_encoder import WordEncoder, Words

from apood.data.inputs import shuffle_records
from apood.data.record import BadRecord, Pair, Record, Skipped, Sound
from apood.encoders import embed
from apood.encoders.embed import EmbedCounts, embed_to_store, encode_cut, encode_portions, limit_records
from apood.encoders.text.encoder import TextEncoder
from apood.support.errors import InputError, StoreError
from apood.tokens.batch import TokenBatch, decode_texts, encode_texts
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter

TEXTS = [f"text number {i} of some" + " more" * (i % 3) for i in range(40)]
Records = list[Record | BadRecord]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions and shards so small that a few texts fill many of them."""
    monkeypatch.setattr(embed, "_PORTION_SEQUENCES", 4)
    monkeypatch.setattr(embed, "TokenStoreWriter", functools.partial(TokenStoreWriter, shard_bytes=1000))


def records(texts: list[str], bad: tuple[int, ...] = ()) -> Records:
    return [
        BadRecord(f"line {i}", f"Line {i} is bad.") if i in bad else Record(text, f"line {i}")
        for i, text in enumerate(texts)
    ]


def held(folder: Path) -> list[str]:
    store = TokenStore(folder)
    return decode_texts(store.select(slice(None)).channels["text"]) if len(store) else []


def same(first: TokenBatch, second: TokenBatch) -> bool:
    return (
        torch.equal(first.values, second.values)
        and torch.equal(first.offsets, second.offsets)
        and first.channels.keys() == second.channels.keys()
        and all(
            torch.equal(first.channels[name].values, second.channels[name].values)
            and torch.equal(first.channels[name].offsets, second.channels[name].offsets)
            for name in first.channels
        )
    )


def test_portions_equal_a_simple_loop_bit_for_bit(
    models: Callable[[str], Path], texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed, "_PORTION_SEQUENCES", 32)
    monkeypatch.setattr(embed, "_FIRST_SEQUENCES", 32)
    encoder = TextEncoder(models("bert"), max_tokens=20, on_long="beginning", device="cpu")
    portions = [portion.batch for portion in encode_portions(records(texts), encoder)]
    expected = [encoder.encode(texts[start : start + 32]) for start in range(0, len(texts), 32)]
    assert len(portions) == len(expected) == 10
    assert all(map(same, portions, expected))


def test_portions_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "_PORTION_BYTES", 2 * 4 * 8 * 4)
    assert [len(portion.batch) for portion in encode_portions(records(TEXTS[:5]), WordEncoder())] == [2, 2, 1]
    monkeypatch.setattr(embed, "_INPUT_BYTES", 1000)
    sounds = [Record(Sound(np.zeros(100, np.float32), 16000), f"sound {i}") for i in range(5)]
    texts = [Record("0123456", f"text {i}") for i in range(5)]
    pairs = [Record(Pair("0123", "456"), f"pair {i}") for i in range(5)]
    for items in (sounds, texts, pairs):
        reader = embed._RecordReader(items, WordEncoder(), None)
        assert [len(reader.read(100, lambda: True)) for _ in range(3)] == [3, 2, 0]
    assert [len(portion) for portion in embed.cut_portions(texts, WordEncoder())] == [2, 2, 1]


def test_portions_grow_while_they_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "_FIRST_SEQUENCES", 1)
    sizes = [len(portion.batch) for portion in encode_portions(records(TEXTS[:22]), WordEncoder())]
    assert sizes == [1, 1, 2, 2, 4, 4, 4, 4]


def test_portions_shrink_if_an_interruption_would_cost_too_much() -> None:
    sizes = [len(portion.batch) for portion in encode_portions(records(TEXTS[:11]), WordEncoder(), seconds=1e-9)]
    assert sizes == [4, 4, 1, 1, 1]


def test_a_portion_of_refused_records_keeps_the_size() -> None:
    class AllRefused(Words):
        @property
        def refused(self) -> dict[int, str]:
            return dict.fromkeys(range(4), "is too long")

    class PickyEncoder(WordEncoder):
        def prepare(self, items: Sequence[str]) -> Words:
            return AllRefused([], [], frozenset()) if items[0] == TEXTS[0] else super().prepare(items)

    portions = list(encode_portions(records(TEXTS[:16]), PickyEncoder()))
    assert [len(portion.batch) for portion in portions] == [0, 4, 4, 4]
    assert [len(portion.records) for portion in portions] == [4, 4, 4, 4]


def test_the_next_portion_is_prepared_while_one_runs() -> None:
    """Both wait for each other."""
    both = threading.Barrier(2, timeout=30)

    class Together(WordEncoder):
        def prepare(self, items):
            if items[0] != TEXTS[0]:
                both.wait()
            return super().prepare(items)

        def run(self, prepared):
            if prepared.texts[0] != TEXTS[8]:
                both.wait()
            assert threading.current_thread() is threading.main_thread()
            return super().run(prepared)

    encoder = Together()
    assert len(list(encode_portions(records(TEXTS[:12]), encoder))) == 3
    assert encoder.ran == TEXTS[:12]


def test_given_portions_are_read_where_they_are_prepared() -> None:
    """An error in reading comes after the portions before it, and the thread ends with it."""
    readers: list[str] = []

    def give() -> Iterator[list[Record]]:
        for start in (0, 4, 8):
            readers.append(threading.current_thread().name)
            if start == 8:
                raise InputError("read failed")
            yield [Record(text, "") for text in TEXTS[start : start + 4]]

    portions = encode_cut(give(), WordEncoder())
    assert [len(next(portions).batch) for _ in range(2)] == [4, 4]
    with pytest.raises(InputError, match="read failed"):
        next(portions)
    assert len(readers) == 3 and all(name.startswith("prepare") for name in readers)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prepare")]


def test_only_one_portion_is_read_ahead() -> None:
    given = 0

    def counted() -> Iterator[Record]:
        nonlocal given
        for text in TEXTS:
            given += 1
            yield Record(text, "")

    portions = encode_portions(counted(), WordEncoder())
    assert [(next(portions), given)[1] for _ in range(3)] == [8, 12, 16]
    portions.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prepare")]


@pytest.mark.parametrize("stage", ["read", "bad", "prepare", "run"])
@pytest.mark.parametrize("place", [0, 18])
def test_an_error_is_raised_after_the_records_before_it(stage: str, place: int, tmp_path: Path) -> None:
    """A record that cannot be read costs none before it, one that cannot be encoded only its own portion."""

    def reading() -> Iterator[Record | BadRecord]:
        for record in records([f"{text} {stage}" if i == place else text for i, text in enumerate(TEXTS)]):
            if stage == "read" and isinstance(record, Record) and "read" in record.item:
                raise InputError("read failed.")
            yield BadRecord(record.place, "bad failed.") if stage == "bad" and record.item.endswith("bad") else record

    with pytest.raises(InputError, match=f"{stage} failed"):
        embed_to_store(reading(), WordEncoder(max_tokens=9), tmp_path / "store")
    count = place if stage in ("read", "bad") else place // 4 * 4
    assert held(tmp_path / "store") == TEXTS[:count]
    assert not [t for t in threading.enumerate() if t.name.startswith(("prepare", "background"))]
    counts = embed_to_store(records(TEXTS), WordEncoder(max_tokens=9), tmp_path / "store", resume=True)
    assert (counts.skipped, counts.sequences) == (count, 40 - count) and held(tmp_path / "store") == TEXTS


def test_the_first_error_is_the_one_that_is_raised() -> None:
    texts = [*TEXTS[:6], "a run", "b", "c prepare", *TEXTS[:7], "d"]
    given = encode_portions(records(texts, bad=(12,)), WordEncoder())
    assert len(next(given).batch) == 4
    with pytest.raises(InputError, match="run failed at 'a run'"):
        next(given)


def test_a_write_error_ends_the_run(tmp_path: Path) -> None:
    """Also if another error occurs before the next portion could report it."""
    texts = TEXTS * 5  # several shards are being written at once, so the error takes some portions to arrive
    last = len(texts) - 1
    for number, bad in enumerate([(), (last,)]):
        folder = tmp_path / f"store-{number}"
        encoder = WordEncoder()

        def blocked(folder: Path = folder, bad: tuple[int, ...] = bad) -> Iterator[Record | BadRecord]:
            for i, record in enumerate(records(texts, bad)):
                if i == (last - 7 if bad else 6):
                    taken = len(list(folder.glob("shard-*")))
                    for next_shard in range(taken, taken + 8):
                        with contextlib.suppress(FileExistsError):  # some are on their way already
                            (folder / f"shard-{next_shard:05d}.safetensors").mkdir()
                yield record

        with pytest.raises(StoreError, match="cannot be written"):
            embed_to_store(blocked(), encoder, folder)
        assert bad or len(encoder.ran) < len(texts)
        assert held(folder) == texts[: len(TokenStore(folder))]


def test_tokens_that_the_store_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="become infinite as float16"):
        embed_to_store([*TEXTS[:5], "\U0001f600", *TEXTS], WordEncoder(), tmp_path / "store")
    assert held(tmp_path / "store") == TEXTS[:4]


def test_an_interrupt_keeps_what_was_encoded(tmp_path: Path) -> None:
    class Interrupted(WordEncoder):
        def run(self, prepared):
            if prepared.texts[0] == TEXTS[20]:
                raise KeyboardInterrupt
            return super().run(prepared)

    with pytest.raises(KeyboardInterrupt):
        embed_to_store(records(TEXTS), Interrupted(), tmp_path / "store")
    assert held(tmp_path / "store") == TEXTS[:20]
    index = TokenStore(tmp_path / "store").index
    assert index.tally["sequences"] == 20 and index.unfinished
    embed_to_store(records(TEXTS), WordEncoder(), tmp_path / "store", resume=True)
    assert not TokenStore(tmp_path / "store").index.unfinished


def test_bad_records_are_skipped_and_counted(tmp_path: Path) -> None:
    bad = (0, 1, 7, 8, 20, 30, 38, 39)
    good = [text for i, text in enumerate(TEXTS) if i not in bad]
    counts = embed_to_store(records(TEXTS, bad), WordEncoder(), tmp_path / "store", skip_bad=True)
    assert held(tmp_path / "store") == good
    assert counts.sequences == 32 and counts.bad == 8
    assert [record.place for record in counts.first_bad] == [f"line {i}" for i in bad[:5]]
    assert TokenStore(tmp_path / "store").index.tally == {"sequences": 32, "truncated": 32, "bad": 8}
    again = embed_to_store(records(TEXTS, bad), WordEncoder(), tmp_path / "store", skip_bad=True, resume=True)
    assert again == EmbedCounts(0, 0, 0, 0, 0, 0, skipped=32, bad=8, first_bad=counts.first_bad)
    with pytest.raises(InputError, match="Line 0 is bad"):
        embed_to_store(records(TEXTS, bad), WordEncoder(), tmp_path / "store", resume=True)


def test_portions_count_the_bad_records_so_far() -> None:
    skipped = Skipped()
    portions = encode_portions(records(TEXTS[:12], bad=(1, 5, 11)), WordEncoder(), skipped)
    assert [(len(w.batch), w.skipped) for w in portions] == [(4, 1), (4, 2), (1, 3)] and skipped.count == 3
    nothing = Skipped()
    assert not list(encode_portions(records(TEXTS[:2], bad=(0, 1)), WordEncoder(), nothing)) and nothing.count == 2


def test_a_limit_counts_good_records() -> None:
    given = records(TEXTS, bad=(1, 2))
    assert list(limit_records(iter(given), 3)) == given[:5]
    assert list(limit_records(given, 100)) == given
    endless = (record for _ in iter(int, 1) for record in given)
    assert sum(isinstance(record, Record) for record in limit_records(endless, 50)) == 50


def test_a_shuffled_run_is_resumed(tmp_path: Path) -> None:
    given = records([*TEXTS[:20], "a run", *TEXTS[20:]], bad=(3, 9))
    with pytest.raises(InputError, match="run failed"):
        embed_to_store(shuffle_records(given, 5), WordEncoder(), tmp_path / "store", skip_bad=True)
    healed = [Record("healed", r.place) if isinstance(r, Record) and r.item == "a run" else r for r in given]
    order = [record.item for record in shuffle_records(healed, 5) if isinstance(record, Record)]
    for limit in (30, 99):
        same_again = limit_records(shuffle_records(healed, 5), limit)
        embed_to_store(same_again, WordEncoder(), tmp_path / "store", skip_bad=True, resume=True)
        assert held(tmp_path / "store") == order[:limit]
    with pytest.raises(InputError, match="first 39 records"):
        embed_to_store(shuffle_records(healed, 6), WordEncoder(), tmp_path / "store", skip_bad=True, resume=True)


class Sources(WordEncoder):
    """Encodes the sources of pairs."""

    def prepare(self, items):
        return super().prepare([pair.source for pair in items])


def test_pairs_are_recognised_by_their_source(tmp_path: Path) -> None:
    pairs: Records = [Record(Pair(text, "target"), "") for text in TEXTS]
    embed_to_store(pairs[:10], Sources(), tmp_path / "store")
    with pytest.raises(InputError, match="first 10 records"):
        embed_to_store(pairs[1:], Sources(), tmp_path / "store", resume=True)
    embed_to_store(pairs, Sources(), tmp_path / "store", resume=True)
    assert held(tmp_path / "store") == TEXTS


def test_pairs_are_recognised_by_their_target(tmp_path: Path) -> None:
    class Targets(Sources):
        def run(self, prepared):
            batch = super().run(prepared)
            targets = encode_texts([f"target of {text}" for text in prepared.texts])
            return TokenBatch(batch.values, batch.offsets, {**batch.channels, "output_text": targets}, batch.encoder)

    def pairs(target: str) -> Records:
        return [Record(Pair(text, f"{target} of {text}"), "") for text in TEXTS]

    embed_to_store(pairs("target")[:10], Targets(), tmp_path / "store")
    with pytest.raises(InputError, match="first 10 records"):
        embed_to_store(pairs("other"), Targets(), tmp_path / "store", resume=True)
    assert embed_to_store(pairs("target"), Targets(), tmp_path / "store", resume=True).skipped == 10


class Loudness(WordEncoder):
    """Encodes the first samples of a sound as a token."""

    def prepare(self, items):
        return Words([], [item.samples[:8].tolist() for item in items], frozenset())

    def run(self, prepared):
        return TokenBatch.from_lengths(torch.tensor(prepared.words), [1] * len(prepared.words))


def test_sounds_are_recognised_by_their_states(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).standard_normal((20, 8)).astype(np.float32)
    sounds: Records = [Record(Sound(row, 16000), "") for row in noise]
    embed_to_store(sounds[:10], Loudness(), tmp_path / "store")
    with pytest.raises(InputError, match="first 10 records"):
        embed_to_store(sounds[1:], Loudness(), tmp_path / "store", resume=True)
    counts = embed_to_store(sounds, Loudness(), tmp_path / "store", resume=True)
    assert (counts.skipped, counts.sequences) == (10, 10)


# Processes that are killed.

MANY = [f"text number {i}" + " more" * (i % 4) for i in range(3000)]


def embed_many(folder: Path) -> None:
    embed._PORTION_SEQUENCES = 16
    embed.TokenStoreWriter = functools.partial(TokenStoreWriter, shard_bytes=5000)  # type: ignore[assignment, misc]
    embed_to_store(records(MANY, bad=(5, 700)), WordEncoder(), folder, skip_bad=True, resume=True)


def test_killed_runs_end_with_the_same_store(tmp_path: Path) -> None:
    folder, moments, seen = tmp_path / "store", random.Random(3), set()
    for _ in range(5):
        shards = len(list(folder.glob("shard-*"))) + moments.randint(1, 8)
        process = context.Process(target=embed_many, args=(folder,))
        process.start()
        while process.is_alive() and len(list(folder.glob("shard-*"))) < shards:
            time.sleep(0.001)
        process.kill()
        process.join()
        if (folder / "index.json").exists():
            seen.add(len(TokenStore(folder)))
    assert len(seen) > 2 and max(seen) < len(MANY), "the kills did not fall into the writing"
    for last in (folder, tmp_path / "uninterrupted"):
        process = context.Process(target=embed_many, args=(last,))
        process.start()
        process.join()
        assert process.exitcode == 0
    stores = [TokenStore(folder), TokenStore(tmp_path / "uninterrupted")]
    assert same(*(store.select(slice(None)) for store in stores))
    # A kill leaves complete shards, and the counts of an incomplete portion are computed again.
    assert stores[0].index == stores[1].index
    cut = sum(len(text.split()) > 4 for i, text in enumerate(MANY) if i not in (5, 700))
    assert stores[0].index.tally == {"sequences": 2998, "truncated": cut, "bad": 2}


def test_an_older_store_is_resumed_without_a_tally(tmp_path: Path) -> None:
    with TokenStoreWriter(tmp_path / "store", dim=8, dtype=torch.float16, encoder=WordEncoder().identity) as writer:
        writer.append(WordEncoder().encode(TEXTS[:10]))
    counts = embed_to_store(records(TEXTS), WordEncoder(), tmp_path / "store", resume=True)
    assert counts.truncated == 30 and TokenStore(tmp_path / "store").index.tally == {}
    assert held(tmp_path / "store") == TEXTS


def test_a_real_interrupt_while_it_waits_for_records(tmp_path: Path) -> None:
    """Records are read in the main thread, because a thread that waits for standard input cannot be interrupted."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "helpers")!r})
from word_encoder import WordEncoder
from apood.encoders import embed
from apood.encoders.embed import embed_to_store
from apood.data.record import Record
embed._PORTION_SEQUENCES = 2
try:
    embed_to_store((Record(line.strip(), "") for line in sys.stdin), WordEncoder(), {str(tmp_path / "store")!r})
except KeyboardInterrupt:
    print("interrupted")
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        process.stdin.write("".join(f"{text}\n" for text in TEXTS[:5]))
        process.stdin.flush()
        while not (tmp_path / "store" / "index.json").exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, errors) == (0, "interrupted\n", "")
    assert held(tmp_path / "store") in ([], TEXTS[:2])  # the second portion is whole, but has not been run
