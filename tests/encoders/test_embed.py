"""Embedding texts into a store: order, counts and resuming."""

import functools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tiny_models import WORDS

from apood.encoders import embed
from apood.encoders.embed import EmbedCounts, embed_to_store
from apood.encoders.text.encoder import TextEncoder
from apood.support.errors import InputError, StoreError
from apood.tokens.batch import decode_texts
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter

Models = Callable[[str], Path]


@pytest.fixture
def encoder(models: Models) -> TextEncoder:
    return TextEncoder(models("llama"), max_tokens=20, on_long="beginning", device="cpu")


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows and shards so small that a few hundred texts fill many of them."""
    monkeypatch.setattr(embed, "_PORTION_SEQUENCES", 16)
    monkeypatch.setattr(embed, "TokenStoreWriter", functools.partial(TokenStoreWriter, shard_bytes=10_000))


def interrupted(texts: list[str], after: int) -> Iterator[str]:
    yield from texts[:after]
    raise KeyboardInterrupt


@pytest.mark.usefixtures("small_steps")
def test_the_store_holds_what_the_encoder_gives_in_order(
    encoder: TextEncoder, texts: list[str], tmp_path: Path
) -> None:
    counts = embed_to_store(iter(texts), encoder, tmp_path / "store", dtype=torch.float32)
    store = TokenStore(tmp_path / "store")
    expected = encoder.encode(texts)
    held = store.select(range(len(store)))
    assert store.encoder == encoder.identity
    torch.testing.assert_close(held.values, expected.values, atol=1e-5, rtol=1e-5)
    assert torch.equal(held.offsets, expected.offsets)
    assert torch.equal(held.channels["input_ids"].values, expected.channels["input_ids"].values)
    assert decode_texts(held.channels["text"]) == texts
    assert counts == EmbedCounts(
        records=len(texts),
        sequences=len(texts),
        long=0,
        tokens=len(expected.values),
        truncated=sum(len(text.split()) > 20 for text in texts),
        empty=0,
        skipped=0,
    )


def test_empty_and_cut_texts_are_counted(encoder: TextEncoder, tmp_path: Path) -> None:
    counts = embed_to_store(["", "word1", " ", " ".join(WORDS)], encoder, tmp_path / "store")
    assert counts == EmbedCounts(records=4, sequences=4, tokens=21, long=0, truncated=1, empty=2, skipped=0)
    assert TokenStore(tmp_path / "store").lengths.tolist() == [0, 1, 0, 20]
    assert embed_to_store([], encoder, tmp_path / "none").sequences == 0
    assert len(TokenStore(tmp_path / "none")) == 0


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("after", [5, 100])
def test_an_interrupted_run_is_resumed_to_the_same_store(
    encoder: TextEncoder, texts: list[str], tmp_path: Path, after: int
) -> None:
    embed_to_store(texts, encoder, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        embed_to_store(interrupted(texts, after), encoder, tmp_path / "resumed")
    counts = embed_to_store(texts, encoder, tmp_path / "resumed", resume=True)
    assert counts.skipped + counts.sequences == len(texts)
    assert (counts.skipped > 0) == (after > 5)
    whole, resumed = (TokenStore(tmp_path / name).select(range(len(texts))) for name in ("whole", "resumed"))
    # Windows start elsewhere after resuming, which may change the rounding of states.
    torch.testing.assert_close(resumed.values, whole.values)
    assert torch.equal(resumed.offsets, whole.offsets)
    for name in ("input_ids", "text"):
        assert torch.equal(resumed.channels[name].values, whole.channels[name].values)
        assert torch.equal(resumed.channels[name].offsets, whole.channels[name].offsets)
    tallies = [TokenStore(tmp_path / name).index.tally for name in ("whole", "resumed")]
    assert (
        tallies[0] == tallies[1] == {"sequences": 300, "truncated": sum(len(t.split()) > 20 for t in texts), "bad": 0}
    )


def _embed_slowly(model: Path, texts: list[str], folder: Path) -> None:
    def slow() -> Iterator[str]:
        for text in texts:
            time.sleep(0.005)
            yield text

    encoder = TextEncoder(model, max_tokens=20, on_long="beginning", device="cpu")
    embed_to_store(slow(), encoder, folder, commit_seconds=0.05)


def test_a_killed_run_keeps_what_was_committed_by_time(
    encoder: TextEncoder, models: Models, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed, "_PORTION_SEQUENCES", 16)  # the child is a fork
    folder = tmp_path / "store"
    process = multiprocessing.get_context("fork").Process(target=_embed_slowly, args=(models("llama"), texts, folder))
    process.start()
    while not (folder / "index.json").exists() or not len(TokenStore(folder)):
        assert process.is_alive()
        time.sleep(0.01)
    process.kill()
    process.join()
    held = len(TokenStore(folder))
    assert 0 < held < len(texts)
    counts = embed_to_store(texts, encoder, folder, resume=True)
    assert (counts.skipped, counts.sequences) == (held, len(texts) - held)
    store = TokenStore(folder)
    assert decode_texts(store.select(range(len(texts))).channels["text"]) == texts
    assert store.index.tally["truncated"] == sum(len(text.split()) > 20 for text in texts)


@pytest.mark.usefixtures("small_steps")
def test_a_finished_store_is_not_encoded_again(encoder: TextEncoder, texts: list[str], tmp_path: Path) -> None:
    embed_to_store(texts, encoder, tmp_path / "store")
    cut = encoder.truncated
    counts = embed_to_store(texts, encoder, tmp_path / "store", resume=True)
    assert counts == EmbedCounts(records=0, sequences=0, tokens=0, long=0, truncated=0, empty=0, skipped=len(texts))
    assert encoder.truncated == cut


@pytest.mark.usefixtures("small_steps")
def test_only_the_same_texts_and_encoder_resume_a_store(
    models: Models, encoder: TextEncoder, texts: list[str], tmp_path: Path
) -> None:
    embed_to_store(texts[:200], encoder, tmp_path / "store")
    for other, message in (
        ([*texts[100:], *texts], "holds 200 records.*first 200 records"),
        (texts[:150], "200 records, more than the 150 records"),
        ([], "more than the 0 records"),
    ):
        with pytest.raises(InputError, match=message):
            embed_to_store(other, encoder, tmp_path / "store", resume=True)
    assert not TokenStore(tmp_path / "store").index.unfinished, "a refusal leaves a finished store as it was"
    with pytest.raises(StoreError, match="another encoder"):
        embed_to_store(texts, TextEncoder(models("llama"), device="cpu"), tmp_path / "store", resume=True)
    with pytest.raises(StoreError, match="already a token store"):
        embed_to_store(texts, encoder, tmp_path / "store")
    assert embed_to_store(texts, encoder, tmp_path / "store", resume=True).skipped == 200
