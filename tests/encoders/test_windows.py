"""Windows of long texts: what they hold, that they depend on the text alone, and how stores keep them."""

import functools
import itertools
import multiprocessing
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_models import WORDS

from apood import TextEncoder, TokenBatch, TokenStore
from apood.data.record import BadRecordError, Pair
from apood.encoders import embed
from apood.encoders.embed import embed_to_store, encode_portions
from apood.encoders.opening import reopen_encoder
from apood.encoders.text.windows import MOST_WINDOWS, cut_windows, find_long_problem
from apood.support.errors import InputError
from apood.tokens.batch import decode_texts
from apood.tokens.documents import count_documents, find_documents
from apood.tokens.identity import describe_other, same_encoder
from apood.tokens.writer import TokenStoreWriter

Models = Callable[[str], Path]


def make_text(words: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def read_ids(batch: TokenBatch) -> list[list[int]]:
    return [row.tolist() for row in batch.channels["input_ids"]]


@pytest.mark.parametrize(("head", "tail"), [(0, 0), (1, 1), (2, 3)])
@pytest.mark.parametrize("limit", [6, 9, 16])
def test_windows_cover_the_text_and_overlap(head: int, tail: int, limit: int) -> None:
    for length in range(limit + 1, 60):
        row = list(range(length))
        windows = cut_windows(row, head, tail, limit)
        (size,) = {len(window) for window in windows}
        assert limit / 2 < size <= limit
        assert all(window[:head] == row[:head] and window[size - tail :] == row[length - tail :] for window in windows)
        inner = [window[head : size - tail] for window in windows]
        assert inner[0][0] == head and inner[-1][-1] == length - tail - 1, "from the beginning to the end"
        room = limit - head - tail
        for left, right in itertools.pairwise(inner):
            assert left == list(range(left[0], left[0] + len(left))), "a window is a run of tokens"
            assert len(set(left) & set(right)) >= room // 4 and right[0] > left[0]
            assert len(set(left) & set(right)) <= len(left) / 2 + 1, "no window repeats another"
        assert find_long_problem(length, head + tail, limit, "windows") is None


def test_the_number_of_windows_is_limited() -> None:
    limit, stride = 12, 9
    longest = limit + (MOST_WINDOWS - 1) * stride
    assert find_long_problem(longest, 0, limit, "windows") is None
    assert len(cut_windows(list(range(longest)), 0, 0, limit)) == MOST_WINDOWS
    problem = find_long_problem(longest + 1, 0, limit, "windows")
    assert problem is not None and problem.startswith(f"has {longest + 1} tokens, which need 65 windows of 12 tokens")
    assert problem.endswith("more than the limit of 64 windows per text")
    assert "leaves no room" in str(find_long_problem(50, 12, 12, "windows"))


@pytest.mark.parametrize("family", ["bert", "llama", "t5"])
def test_special_tokens_and_the_template_are_in_every_window(models: Models, family: str) -> None:
    encoder = TextEncoder(models(family), template="word1 word2 {text} word3", max_tokens=12, device="cpu")
    text = make_text(40, 1)
    batch = encoder.encode([text, "word5"])
    windows = read_ids(batch)[:-1]
    short = read_ids(batch)[-1]
    at = short.index(WORDS.index("word5") + 4)
    assert len(windows) > 3 and len({len(window) for window in windows}) == 1 and 6 < len(windows[0]) <= 12
    for window in windows:
        assert window[:at] == short[:at] and window[len(window) - len(short) + at + 1 :] == short[at + 1 :]
    assert decode_texts(batch.channels["text"]) == [text, *[""] * (len(windows) - 1), "word5"]
    assert encoder.truncated == 0


def test_windows_depend_on_the_text_alone(models: Models) -> None:
    encoder = TextEncoder(models("bert"), max_tokens=10, device="cpu")
    texts = [make_text(words, words) for words in (50, 3, 11, 8, 30, 9)]
    together = encoder.encode(texts)
    bounds = [*find_documents(together).tolist(), len(together)]
    assert len(bounds) == 7
    for index, text in enumerate(texts):
        alone = encoder.encode([text])
        own = together.select(slice(bounds[index], bounds[index + 1]))
        assert read_ids(alone) == read_ids(own) and alone.windows.tolist() == own.windows.tolist()
        torch.testing.assert_close(alone.values, own.values, atol=1e-5, rtol=1e-5)
    backwards = encoder.encode(texts[::-1])
    assert sorted(read_ids(backwards)) == sorted(read_ids(together))


def test_a_tokenizer_in_python_gives_windows_with_its_last_token(tmp_path: Path) -> None:
    config = transformers.T5Config(vocab_size=384, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    transformers.ByT5Tokenizer().save_pretrained(tmp_path)
    batch = TextEncoder(tmp_path, max_tokens=7, template="ab{text}", device="cpu").encode(["0123456789"])
    rows = ["".join(chr(i - 3) for i in row[:-1]) for row in read_ids(batch)]
    assert rows == ["ab0123", "ab3456", "ab6789"] and all(row[-1] == 1 for row in read_ids(batch))


def test_channels_belong_to_their_window(models: Models) -> None:
    encoder = TextEncoder(models("llama"), max_tokens=8, device="cpu")
    text = make_text(20, 0)
    batch = encoder.encode([text])
    words = text.split()
    for number, start in enumerate([0, 6, 12]):
        alone = encoder.encode([" ".join(words[start : start + 8])])
        for name in ("token_logprobs", "summary", "input_ids"):
            torch.testing.assert_close(
                batch.channels[name].sequence(number), alone.channels[name].sequence(0), atol=1e-4, rtol=1e-4
            )


@pytest.mark.parametrize("mode", ["input", "output", "reference"])
def test_long_texts_can_be_refused(models: Models, mode: Any) -> None:
    encoder = TextEncoder(models("t5"), mode=mode, max_tokens=8, max_new_tokens=4, on_long="refuse", device="cpu")
    texts: list[Any] = [make_text(words, words) for words in (3, 20, 7)]
    items = [Pair(text, "word1 word2") for text in texts] if mode == "reference" else texts
    with pytest.raises(InputError, match=r"text at index 1 has 21 tokens, and a text of more than max_tokens=8 is ref"):
        encoder.encode(items)
    prepared = encoder.prepare(items)
    assert [*prepared.refused] == [1] and prepared.texts == [texts[0], texts[2]]
    batch = encoder.run(prepared)
    assert len(batch) == 2 and batch.windows is None
    assert torch.equal(batch.values, encoder.encode([items[0], items[2]]).values)


def test_a_text_of_too_many_windows_is_refused(models: Models) -> None:
    encoder = TextEncoder(models("llama"), max_tokens=8, device="cpu")
    assert len(encoder.encode([make_text(8 + 63 * 6, 0)])) == MOST_WINDOWS
    with pytest.raises(InputError, match=r"text at index 1 has 387 tokens.*65 windows.*limit of 64 windows per text"):
        encoder.encode(["word1", make_text(8 + 63 * 6 + 1, 0)])


def test_values_of_on_long(models: Models) -> None:
    with pytest.raises(InputError, match=r"on_long.*windows.*refuse.*beginning.*tail"):
        TextEncoder(models("bert"), on_long="tail")  # type: ignore[arg-type]
    for mode in ("output", "reference"):
        with pytest.raises(InputError, match=f"on_long must be beginning or refuse in mode {mode}"):
            TextEncoder(models("t5"), mode=mode, on_long="windows")  # type: ignore[arg-type]
        assert TextEncoder(models("t5"), mode=mode).on_long == "beginning"  # type: ignore[arg-type]
    assert TextEncoder(models("t5")).on_long == "windows"


def test_the_identity_says_what_becomes_of_long_texts(models: Models) -> None:
    windows, refuse, beginning = (
        TextEncoder(models("bert"), max_tokens=8, on_long=how, device="cpu").identity
        for how in ("windows", "refuse", "beginning")
    )
    assert not same_encoder(windows, refuse) and not same_encoder(windows, beginning)
    assert "on_long" not in beginning, "as identities of before"
    assert describe_other(beginning, windows) == "on_long beginning"
    for identity in (windows, refuse, beginning):
        assert reopen_encoder(identity).identity == identity


# Stores.


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "_PORTION_SEQUENCES", 16)
    monkeypatch.setattr(embed, "TokenStoreWriter", functools.partial(TokenStoreWriter, shard_bytes=5000))


@pytest.fixture(scope="module")
def many() -> list[str]:
    return ["word1 word2", *(make_text(random.Random(i).choice([3, 5, 9, 20, 45]), i) for i in range(149))]


@pytest.mark.usefixtures("small_steps")
def test_a_store_holds_the_windows_of_every_text(models: Models, many: list[str], tmp_path: Path) -> None:
    encoder = TextEncoder(models("llama"), max_tokens=8, device="cpu")
    counts = embed_to_store(many, encoder, tmp_path / "store", dtype=torch.float32)
    store, expected = TokenStore(tmp_path / "store"), encoder.encode(many)
    held = store.select(slice(None))
    assert held.windows.tolist() == expected.windows.tolist() and read_ids(held) == read_ids(expected)
    torch.testing.assert_close(held.values, expected.values, atol=1e-5, rtol=1e-5)
    assert (counts.records, counts.sequences, count_documents(store)) == (150, len(expected), 150)
    assert counts.long == sum(len(text.split()) > 8 for text in many) and counts.truncated == 0
    assert embed_to_store(many, encoder, tmp_path / "store", dtype=torch.float32, resume=True).skipped == 150
    with pytest.raises(InputError, match="holds 150 records, but not the first 150"):
        embed_to_store(many[::-1], encoder, tmp_path / "store", dtype=torch.float32, resume=True)


@pytest.mark.usefixtures("small_steps")
def test_refused_texts_are_bad_records(models: Models, many: list[str], tmp_path: Path) -> None:
    encoder = TextEncoder(models("llama"), max_tokens=8, on_long="refuse", device="cpu")
    short = [text for text in many if len(text.split()) <= 8]
    first = next(i for i, text in enumerate(many) if len(text.split()) > 8)
    with pytest.raises(BadRecordError, match=f"^Text {first} has .* tokens, and a text of more than max_tokens=8"):
        embed_to_store(many, encoder, tmp_path / "store")
    assert decode_texts(TokenStore(tmp_path / "store").select(slice(None)).channels["text"]) == many[:first]
    counts = embed_to_store(many, encoder, tmp_path / "store", resume=True, skip_bad=True)
    assert (counts.skipped, counts.records, counts.bad) == (first, len(short) - first, len(many) - len(short))
    assert counts.first_bad[0].reason.startswith(f"Text {first} has")
    store = TokenStore(tmp_path / "store")
    assert decode_texts(store.select(slice(None)).channels["text"]) == short
    assert store.index.tally == {"sequences": len(short), "truncated": 0, "bad": len(many) - len(short)}
    again = embed_to_store([*many, "word1"], encoder, tmp_path / "store", resume=True, skip_bad=True)
    assert (again.skipped, again.records, again.bad) == (len(short), 1, len(many) - len(short))


def _embed_slowly(model: Path, texts: list[str], folder: Path, on_long: Any) -> None:
    def slow() -> Any:
        for text in texts:
            time.sleep(0.002)
            yield text

    encoder = TextEncoder(model, max_tokens=8, on_long=on_long, device="cpu")
    embed_to_store(slow(), encoder, folder, commit_seconds=0.02, resume=True, skip_bad=True)


@pytest.mark.parametrize("on_long", ["windows", "refuse"])
def test_a_killed_run_leaves_whole_documents_and_is_resumed(
    models: Models, many: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_long: Any
) -> None:
    monkeypatch.setattr(embed, "_PORTION_SEQUENCES", 16)
    folder, held, arguments = tmp_path / "store", [0], (models("llama"), many, tmp_path / "store", on_long)
    for _ in range(3):
        process = multiprocessing.get_context("fork").Process(target=_embed_slowly, args=arguments)
        process.start()
        while process.is_alive() and not ((folder / "index.json").exists() and len(TokenStore(folder)) > held[-1]):
            time.sleep(0.005)
        process.kill()
        process.join()
        store = TokenStore(folder)
        held.append(len(store))
        texts = [text for text in many if on_long == "windows" or len(text.split()) <= 8][: count_documents(store)]
        first = store.select(find_documents(store))
        assert decode_texts(first.channels["text"]) == texts
        expected = TextEncoder(models("llama"), max_tokens=8, device="cpu").encode(texts)
        assert store.lengths.tolist() == expected.lengths.tolist(), "no document lacks a window"
    _embed_slowly(*arguments)
    _embed_slowly(*arguments[:2], tmp_path / "whole", on_long)
    one, other = (TokenStore(path).select(slice(None)) for path in (folder, tmp_path / "whole"))
    assert (
        read_ids(one) == read_ids(other)
        and TokenStore(folder).index.tally == TokenStore(tmp_path / "whole").index.tally
    )
    assert len(set(held)) > 2


def test_portions_allow_for_windows(models: Models) -> None:
    from apood.data.record import Record

    encoder = TextEncoder(models("llama"), max_tokens=8, device="cpu")
    records = [Record(make_text(60, i), "") for i in range(40)]
    portions = list(encode_portions(records, encoder))
    assert max(len(portion.batch) for portion in portions) <= 64 + MOST_WINDOWS
    assert sum(len(portion.records) for portion in portions) == 40
