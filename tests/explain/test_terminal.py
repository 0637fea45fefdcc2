"""Marked text on a terminal."""

import io

from rich.console import Console

from apood.explain.spans import Span, find_words
from apood.explain.terminal import mark_text
from apood.explain.text_explanation import MemberPart, TextExplanation


def mark(text, *contributions, accepted=False):
    spans = [Span(w.start, w.end, c, 1) for w, c in zip(find_words(text), contributions, strict=True)]
    members = [MemberPart("knn", 1.0, True)]
    return mark_text(TextExplanation(text, 0.0, 0.0, 0.5, accepted, (0, len(text)), 1, spans, [], members, 1.0))


def printed(text, **options):
    console = Console(file=io.StringIO(), width=200, **options)
    console.print(text)
    return console.file.getvalue()


def test_suspicious_words_are_in_brackets_and_the_rest_is_unchanged():
    assert mark("a  very\nodd end", 0.0, 0.9, 1.0, 0.1).plain == "a  [very\nodd] end"
    assert mark("a very odd end", 1.0, 0.0, 0.0, 1.0).plain == "[a] very odd [end]"
    assert mark(" all is well ", -1.0, 0.0, -0.5).plain == " all is well ", "nothing suspicious, nothing marked"


def test_there_are_three_levels_of_marks():
    text = mark("a b c d", 0.1, 0.3, 0.6, 1.0)
    assert len({span.style for span in text.spans if span.style}) == 3
    assert text.plain == "a b [c d]"


def test_marks_of_an_accepted_text_are_faint():
    text = mark("a b c d", 0.1, 0.3, 0.6, 1.0, accepted=True)
    assert text.plain == "a [b c d]" and len({span.style for span in text.spans if span.style}) == 1


def test_marks_survive_a_pipe_and_are_coloured_on_a_terminal():
    text = mark("fine odd", 0.0, 1.0)
    assert printed(text) == "fine [odd]\n"
    assert "\x1b[" in printed(text, force_terminal=True, color_system="standard")


def test_brackets_of_the_text_are_no_markup_of_rich():
    assert printed(mark("[bold]x[/bold] y", 0.0, 0.0)) == "[bold]x[/bold] y\n"
