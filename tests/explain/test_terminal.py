"""Marked text on a terminal."""

import io

import pytest
from rich.console import Console

from apood.encoders.text.encoder import TextEncoder
from apood.experiments.demo_sources import find_minilm
from apood.explain.terminal import marked_text
from apood.support.errors import InputError

WORD_PIECES = ["[CLS]", "it", "doesn", "'", "t", "like", "(", "any", ")", "robot", "##s", ".", "[SEP]"]


def contributions(pieces, suspicious):
    return [float(suspicious.get(piece, 0.0)) for piece in pieces]


def printed(text, **options):
    console = Console(file=io.StringIO(), width=200, **options)
    console.print(text)
    return console.file.getvalue()


def test_word_pieces_become_readable_text_without_special_tokens():
    assert marked_text(WORD_PIECES, [0.0] * len(WORD_PIECES)).plain == "it doesn't like (any) robots."


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["▁Some", "▁rob", "ots", "</s>"], "Some robots"),
        (["Some", "Ġrob", "ots", "âĢĻ", "ĠCaf", "Ã", "©", "<|endoftext|>"], "Some robots’ Café"),
        (["[CLS]", " it", " doesn", " '", " t", " like", " robot", "s", " .", " [SEP]"], "it doesn't like robots."),
        (["A", " well", "\n", "Known", " '", "value", "'", "."], "A well Known 'value'."),
        (["One", "Ġline", ".", "Ċ", "Another"], "One line. Another"),
        ([], ""),
    ],
)
def test_other_tokenizers_pieces_become_readable_text(pieces, expected):
    assert marked_text(pieces, [0.0] * len(pieces)).plain == expected


def test_an_encoders_pieces_become_readable_text():
    encoder = TextEncoder(find_minilm(), max_tokens=64)
    batch = encoder.encode(["Return a list (of lines), e.g. paragraphs; it doesn't strip them."])
    pieces = encoder.pieces(batch.channels["input_ids"].values)
    assert marked_text(pieces, [0.0] * len(pieces)).plain.startswith("return a list (of lines), ")


def test_pieces_of_a_word_add_up():
    # "robots" 0.8 beats "like" 0.5, although each of its pieces is smaller
    text = marked_text(WORD_PIECES, contributions(WORD_PIECES, {"like": 0.5, "robot": 0.4, "##s": 0.4}))
    style = {text.plain[span.start : span.end]: span.style for span in text.spans}
    assert "bold" in style["[robots]"]
    assert "bold" not in style["[like]"]


def test_neighbours_share_a_pair_of_brackets():
    pieces = ["a", "very", "odd", "end"]
    assert marked_text(pieces, [0.0, 0.9, 1.0, 0.1]).plain == "a [very odd] end"
    assert marked_text(pieces, [1.0, 0.0, 0.0, 1.0]).plain == "[a] very odd [end]"


def test_more_suspicious_words_have_stronger_marks():
    text = marked_text(["a", "b", "c", "d"], [0.1, 0.3, 0.6, 1.0])
    styles = [text.get_style_at_offset(Console(), text.plain.index(letter)) for letter in "abcd"]
    assert styles[0].bgcolor is None
    assert len({style.bgcolor for style in styles[1:]}) == 3
    assert all(style.color is not None for style in styles[1:])  # not left to the terminal's own foreground


def test_marks_survive_a_pipe_and_no_color():
    text = marked_text(["fine", "odd"], [0.0, 1.0])
    assert printed(text, force_terminal=False) == "fine [odd]\n"
    without_colour = printed(text, force_terminal=True, no_color=True, color_system="standard")
    assert "odd]" in without_colour
    assert "41" not in without_colour  # the code of a red background
    assert "41" in printed(text, force_terminal=True, color_system="standard")


def test_nothing_is_marked_where_nothing_is_suspicious():
    text = marked_text(["all", "is", "well"], [-1.0, 0.0, -0.5])
    assert text.plain == "all is well"
    assert all(not span.style for span in text.spans)


def test_a_special_token_does_not_set_the_scale():
    assert marked_text(["[CLS]", "odd"], [100.0, 1.0]).plain == "[odd]"


@pytest.mark.parametrize(
    ("given", "message"), [([1.0], "2 pieces, 1 numbers"), ([1.0, float("nan")], "finite numbers, got")]
)
def test_contributions_that_do_not_fit_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        marked_text(["two", "pieces"], given)
