"""The channel `sentences`: where sentences are, which sequence has them, and that they depend on themselves alone."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from apood import TextEncoder
from apood.encoders.text import sentences as module
from apood.encoders.text.sentences import embed_sentences, find_sentence_places
from apood.tokens.batch import Ragged, TokenBatch

Models = Callable[[str], Path]

A, B, C = "word1 word2.", "word3 word4 word5!", "word6?"


def read_rows(batch: TokenBatch) -> list[list[float]]:
    """Return the numbers of tokens of the sentences of each sequence."""
    return [own[:, 0].tolist() for own in batch.channels["sentences"]]


def embed_plainly(encoder: TextEncoder, sentence: str) -> torch.Tensor:
    """Return the row of a sentence, from the model's table of embeddings."""
    ids = encoder._tokeniser.tokenise_parts([sentence]).values.long()
    weight = encoder._pass.model.model.get_input_embeddings().weight
    return torch.cat([torch.tensor([float(len(ids))]), weight[ids].float().mean(0)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n\t ", []),
        ("no end", ["no end"]),
        ("One. Two! Three? Four… Five", ["One.", "Two!", "Three?", "Four…", "Five"]),
        ("He said 'No.' Then (he left.) So.", ["He said 'No.'", "Then (he left.)", "So."]),
        ("a\nb\n\n  c", ["a", "b", "c"]),
        ("你好。再见！是吗？好", ["你好。", "再见！", "是吗？", "好"]),
        ("真的！！！他走了。", ["真的！！！", "他走了。"]),
        ("「你好。」他说。", ["「你好。」", "他说。"]),
        ("3.14 is pi.It goes on", ["3.14 is pi.It goes on"]),
        ("  a.  \n b.  ", ["a.", "b."]),
    ],
)
def test_sentences_are_where_they_end(text: str, expected: list[str]) -> None:
    assert [text[start:end].strip() for start, end in find_sentence_places(text)] == expected


@given(st.text(alphabet="ab .!\n。”\ud800", max_size=40))
def test_sentences_have_all_that_is_not_white_space(text: str) -> None:
    places = find_sentence_places(text)
    assert all(0 <= start < end <= len(text) and text[start:end].strip() for start, end in places)
    assert all(before[1] <= after[0] for before, after in pairwise(places))
    assert "".join("".join(text[start:end].split()) for start, end in places) == "".join(text.split())


def test_long_white_space_takes_no_quadratic_time() -> None:
    assert find_sentence_places("a." + " " * 200_000 + "b") == [(0, 2), (200_002, 200_003)]
    assert len(find_sentence_places("a" + " " * 200_000 + "b")) == 1


@pytest.mark.parametrize("family", ["bert", "albert", "llama", "gpt2", "t5", "bart"])
def test_a_row_is_the_number_of_tokens_and_the_mean_embedding(models: Models, family: str) -> None:
    encoder = TextEncoder(models(family), device="cpu")
    batch = encoder.encode([f"{A} {B}", C])
    rows = batch.channels["sentences"]
    assert rows.lengths.tolist() == [2, 1] and rows.values.dtype == torch.float32
    if family != "bart":  # its embeddings are scaled
        expected = torch.stack([embed_plainly(encoder, sentence) for sentence in (A, B, C)])
        torch.testing.assert_close(rows.values, expected)
    assert read_rows(batch) == [[2, 3], [1]]


def test_a_row_does_not_depend_on_other_texts_and_sentences(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = TextEncoder(models("bert"), device="cpu")
    texts = [f"{A} {B}", C, "", f"{B} {A} {C} {B}", "word9"]
    rows = encoder.encode(texts).channels["sentences"]
    alone = Ragged.concatenate([encoder.encode([text]).channels["sentences"] for text in texts])
    assert torch.equal(rows.values, alone.values) and torch.equal(rows.offsets, alone.offsets)
    assert torch.equal(rows.sequence(0), rows.sequence(3)[[1, 0]])
    monkeypatch.setattr(module, "_PORTION", 3)
    portions = encoder.encode(texts).channels["sentences"]
    assert torch.equal(rows.values, portions.values) and torch.equal(rows.offsets, portions.offsets)


def test_the_template_and_special_tokens_are_not_part_of_sentences(models: Models) -> None:
    texts = [f"{A} {B}", C, ""]
    plain = TextEncoder(models("bert"), device="cpu").encode(texts).channels["sentences"]
    for options in ({"template": "word7. word8. {text} word9."}, {"special_tokens": False}):
        rows = TextEncoder(models("bert"), device="cpu", **options).encode(texts).channels["sentences"]  # type: ignore[arg-type]
        assert torch.equal(rows.values, plain.values) and torch.equal(rows.offsets, plain.offsets)


def test_the_first_window_has_all_sentences_and_others_the_first(models: Models) -> None:
    encoder = TextEncoder(models("bert"), max_tokens=12, device="cpu")
    long = " ".join([A, B, C] * 6)
    batch = encoder.encode([A, long, B])
    counts = batch.channels["sentences"].lengths.tolist()
    windows = len(counts) - 2
    assert windows > 2 and counts == [1, 18, *[1] * (windows - 1), 1]
    rows = list(batch.channels["sentences"])
    assert all(torch.equal(row[0], rows[1][0]) for row in rows[2:-1])


def test_of_a_text_that_is_cut_only_the_beginning_has_sentences(models: Models) -> None:
    encoder = TextEncoder(models("bert"), max_tokens=9, on_long="beginning", device="cpu")  # two of them special
    assert encoder.truncated == 0
    assert read_rows(encoder.encode([" ".join([A, B, C] * 6)])) == [[2, 3, 1, 1]]  # the last one is cut
    assert read_rows(encoder.encode(["word1 " * 30])) == [[7]]
    assert encoder.truncated == 2
    assert read_rows(encoder.encode([f"{A} {B}"])) == [[2, 3]]


def test_refused_texts_have_no_sentences(models: Models) -> None:
    encoder = TextEncoder(models("bert"), max_tokens=7, on_long="refuse", device="cpu")
    prepared = encoder.prepare([A, " ".join([A, B, C] * 6), f"{B} {C}"])
    assert list(prepared.refused) == [1]
    batch = encoder.run(prepared)
    assert read_rows(batch) == [[2], [3, 1]]
    refused = encoder.prepare([" ".join([A, B, C] * 6)])
    assert encoder.run(refused).channels["sentences"].values.shape == (0, 17)


def test_nothing_has_no_sentences(models: Models) -> None:
    encoder = TextEncoder(models("bert"), device="cpu")
    assert encoder.encode([]).channels["sentences"].values.shape == (0, 17)
    rows = encoder.encode(["", "  \n "]).channels["sentences"]
    assert rows.lengths.tolist() == [0, 0] and rows.values.shape == (0, 17)


def test_lone_surrogates_are_read_as_the_replacement_character(models: Models) -> None:
    encoder = TextEncoder(models("bert"), device="cpu")
    broken, replaced = (encoder.encode([f"{A} {sign} word3."]).channels["sentences"] for sign in ("\ud83d", "\ufffd"))
    assert torch.equal(broken.values, replaced.values) and broken.lengths.tolist() == [2]


def test_tokenizers_that_are_written_in_python_work_too(tmp_path: Path) -> None:
    config = transformers.T5Config(vocab_size=384, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    model: Any = transformers.T5ForConditionalGeneration(config)
    model.save_pretrained(tmp_path)
    transformers.ByT5Tokenizer().save_pretrained(tmp_path)
    batch = TextEncoder(tmp_path, device="cpu").encode(["ab. cde", "", "é"])
    assert read_rows(batch) == [[3, 3], [], [2]]
    weight = model.get_input_embeddings().weight.detach()
    expected = weight[[ord(sign) + 3 for sign in "ab."]].mean(0)
    torch.testing.assert_close(batch.channels["sentences"].values[0, 1:], expected)


@pytest.mark.parametrize(("family", "mode"), [("t5", "output"), ("llama", "output")])
def test_outputs_have_no_sentences(models: Models, family: str, mode: Any) -> None:
    encoder = TextEncoder(models(family), mode=mode, max_new_tokens=3, device="cpu")
    assert "sentences" not in encoder.encode([f"{A} {B}"]).channels
    assert encoder.prepare([A]).sentences is None


def test_sentences_can_be_left_out(models: Models) -> None:
    encoder, other = (TextEncoder(models("bert"), sentences=wanted, device="cpu") for wanted in (False, True))
    assert "sentences" not in encoder.encode([A]).channels
    assert encoder.identity == other.identity, "the tokens are the same"


def test_a_slice_of_prepared_texts_has_its_own_sentences(models: Models) -> None:
    encoder = TextEncoder(models("bert"), max_tokens=12, device="cpu")
    prepared = encoder.prepare([A, " ".join([A, B, C] * 6), "", B])
    whole = encoder.run(prepared).channels["sentences"]
    for start in range(len(prepared.texts)):
        for stop in range(start + 1, len(prepared.texts) + 1):
            part = prepared.slice(start, stop).sentences
            assert part is not None
            rows = embed_sentences(encoder._pass.model.model.get_input_embeddings(), part)
            expected = whole.select(slice(start, stop))
            assert torch.equal(rows.values, expected.values) and torch.equal(rows.offsets, expected.offsets)
