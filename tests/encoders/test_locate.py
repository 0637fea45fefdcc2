"""Where the tokens of a text are in it."""

import pytest
import torch
from tiny_models import WORDS

from apood import TextEncoder
from apood.support.errors import InputError

LONG = " ".join(WORDS[number % 40] for number in range(70))


@pytest.mark.parametrize("family", ["bert", "llama", "t5"])
@pytest.mark.parametrize("options", [{}, {"special_tokens": False}, {"template": "word1 {text} word2"}], ids=str)
def test_each_token_is_where_it_says(models, family, options):
    encoder = TextEncoder(models(family), max_tokens=24, **options)
    texts = ["word3", "  word4\tword5 ", LONG, ""]
    batch, places = encoder.encode(texts), encoder.locate(texts)
    assert torch.equal(places.offsets, batch.offsets)
    owners = [texts[0], texts[1], *[LONG] * (len(batch) - 3), texts[3]]
    for text, rows, ids in zip(owners, places, batch.channels["input_ids"], strict=True):
        for (start, end), token in zip(rows.tolist(), ids.tolist(), strict=True):
            if start >= 0:
                assert text[start:end] == encoder.pieces([token])[0]
    inside = {place for rows in list(places)[2:-1] for start, end in rows.tolist() for place in range(start, end)}
    assert inside >= {place for place, character in enumerate(LONG) if character != " "}, "windows cover the text"


def test_of_a_text_that_is_cut_only_the_beginning_is_located(models):
    encoder = TextEncoder(models("bert"), max_tokens=10, on_long="beginning")
    batch, places = encoder.encode([LONG]), encoder.locate([LONG])
    assert torch.equal(places.offsets, batch.offsets)
    assert places.values[0].tolist() == places.values[-1].tolist() == [-1, -1], "special tokens are no part of a text"
    assert LONG[: int(places.values[-2, 1])] == " ".join(LONG.split()[:8])


def test_surrogates_do_not_shift_places(models):
    text = "word1 \ud800 \ud83d\ude00 word2"  # a lone one, and two that make up one character
    places = TextEncoder(models("bert")).locate([text]).values.tolist()
    assert [text[start:end] for start, end in places[1:-1]] == ["word1", "\ud800", "\ud83d\ude00", "word2"]


def test_outputs_are_no_part_of_a_text(models):
    with pytest.raises(InputError, match="In mode output the tokens of a sequence are not part of the given text"):
        TextEncoder(models("t5"), mode="output", max_new_tokens=3).locate(["word1"])
