"""Words and sentences of a text, and the sums of their tokens."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from apood.explain.spans import Span, find_owners, find_sentences, find_words, sum_tokens
from apood.explain.visible import make_visible


def cut(text, spans):
    return [text[span.start : span.end] for span in spans]


def test_words_are_what_stands_between_spaces():
    text = "It's  well-known,\nisn't it? 你好。"
    assert cut(text, find_words(text)) == ["It's", "well-known,", "isn't", "it?", "你", "好", "。"]


def test_a_run_without_spaces_is_cut():
    assert [span.end - span.start for span in find_words("a" * 150)] == [64, 64, 22]


def test_sentences_end_in_marks_or_line_breaks():
    text = 'He said "No." Then he left!  Why?\n\nA title\n你好。再见。'
    expected = ['He said "No."', "Then he left!", "Why?", "A title", "你好。", "再见。"]
    assert cut(text, find_sentences(text)) == expected
    assert find_sentences(" \n ") == []


def test_long_runs_of_white_space_take_no_longer_than_words():
    run = " " * 300_000
    assert cut(f"a{run}b. {run}\n{run}c", find_sentences(f"a{run}b. {run}\n{run}c")) == [f"a{run}b.", "c"]


def test_a_token_belongs_to_the_word_where_it_begins():
    text = "odd words"
    places = np.array([[-1, -1], [0, 2], [2, 3], [3, 9]])  # the last one begins with its space
    words = find_words(text)
    words = sum_tokens(words, find_owners(text, words, places), np.array([9.0, 1.0, 2.0, 4.0]))
    assert words == [Span(0, 3, 3.0, 2), Span(4, 9, 4.0, 1)]


@given(st.text())
def test_spans_cover_every_character_but_white_space(text):
    for find in (find_words, find_sentences):
        spans = find(text)
        assert all(a.end <= b.start for a, b in pairwise(spans))
        rest = list(text)
        for span in spans:
            rest[span.start : span.end] = " " * (span.end - span.start)
        assert not "".join(rest).strip()


@given(st.text(st.characters()))
def test_what_is_made_visible_has_no_hidden_character(text):
    shown = make_visible(text)
    assert make_visible(shown) == shown
    shown.encode()  # no lone surrogate is left
    assert make_visible("a\u202eb\x1b\ud800\u200b\n") == "a⟨U+202E⟩b⟨U+001B⟩⟨U+D800⟩⟨U+200B⟩\n"
