"""Token ids and their limit, against the tokenizers of transformers."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tiny_models import WORDS, word_tokenizer
from transformers import ByT5Tokenizer

from apood.encoders.text.tokenising import Tokeniser


def tokenizers() -> dict[str, Any]:
    return {
        "bare": word_tokenizer(),
        "before": word_tokenizer("[A]", bos_token="[A]"),
        "behind": word_tokenizer(suffix="[B]", eos_token="[B]"),
        "around": word_tokenizer("[A]", "[B]", cls_token="[A]", sep_token="[B]", pad_token="[PAD]"),
        "bytes": ByT5Tokenizer(),
    }


@pytest.mark.parametrize("limit", [3, 28])
@pytest.mark.parametrize("name", tokenizers())
def test_cutting_is_that_of_transformers(texts: list[str], name: str, limit: int) -> None:
    given = [*texts, "", "  ", "unheard-of [B] word1", "word1 [A]"]
    found = Tokeniser(tokenizers()[name], "model", limit).tokenise_sources(given)
    expected = tokenizers()[name](given, truncation=True, max_length=limit)["input_ids"]
    assert [row.tolist() for row in found.ids] == expected
    whole = tokenizers()[name](given)["input_ids"]
    assert found.cut == [index for index, row in enumerate(whole) if len(row) > limit]
    assert found.ids.values.dtype == torch.int32


def test_saved_limits_and_padding_of_a_tokenizer_are_ignored() -> None:
    tokenizer = word_tokenizer(pad_token="[PAD]")
    tokenizer.backend_tokenizer.enable_truncation(2)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    found = Tokeniser(tokenizer, "model", 5).tokenise_sources(["word1", " ".join(WORDS)])
    assert found.ids.lengths.tolist() == [1, 5]
    assert found.cut == [1]


def test_targets_keep_their_end_and_continuations_have_none() -> None:
    tokeniser = Tokeniser(word_tokenizer("[A]", "[B]", bos_token="[A]", eos_token="[B]"), "model", 9)
    texts = ["word1", "word1 word2 word3"]
    targets = tokeniser.tokenise_targets(texts, 4)
    assert [row.tolist() for row in targets.ids] == [[2, 5, 3], [2, 5, 6, 3]]
    continuations = tokeniser.tokenise_continuations(texts, 2)
    assert [row.tolist() for row in continuations.ids] == [[5], [5, 6]]
    assert (targets.cut, continuations.cut) == ([1], [1])


def test_threads_do_not_share_limits(texts: list[str]) -> None:
    tokeniser = Tokeniser(word_tokenizer("[A]", "[B]", bos_token="[A]", eos_token="[B]"), "model", 20)
    expected = tokeniser.tokenise_sources(texts).ids.values
    with ThreadPoolExecutor(4) as pool:
        sources = [pool.submit(tokeniser.tokenise_sources, texts) for _ in range(12)]
        targets = [pool.submit(tokeniser.tokenise_targets, texts, 5) for _ in range(12)]
    assert all(torch.equal(future.result().ids.values, expected) for future in sources)
    assert all(int(future.result().ids.lengths.max()) == 5 for future in targets)


def test_unknown_words_are_not_special() -> None:
    assert Tokeniser(tokenizers()["around"], "model", 9).special_ids.tolist() == [0, 2, 3]
    shared = word_tokenizer("[A]", bos_token="[UNK]", eos_token="[UNK]")  # as GPT-2 has them
    assert 1 in Tokeniser(shared, "model", 9).special_ids.tolist()
