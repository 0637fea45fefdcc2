"""Explanations on a terminal: text with its suspicious words marked, and what each member says."""

import io

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from apood.explain.text_explanation import TextExplanation
from apood.explain.visible import make_visible
from apood.explain.wording import (
    describe_decision,
    describe_explained,
    describe_numbers,
    describe_window,
    name_worst_sentence,
    shorten,
    split_words,
)

__all__ = ["format_plain", "mark_text", "render_explanation"]

# Foreground and background are both set, so that marks look alike on dark and light terminals.
_STYLES = ("", "black on bright_yellow", "black on yellow", "bold white on red")
_UNDERLINED = " underline"  # is added to the style of a word
_BRACKETED = 2  # words from this level on are in brackets, which survive pipes and NO_COLOR
_WIDTH = 100  # of text that is printed without a terminal


def mark_text(explanation: TextExplanation) -> Text:
    """Return the text with its suspicious words marked.

    Words with at least a quarter of the largest contribution get a coloured background, in three levels. Words of the
    upper two levels are also put in [brackets], or all marked words if none reaches these. The most suspicious sentence
    is underlined. Characters that cannot be seen are shown by their numbers. Of a long text, only the window that
    decides is shown.
    """
    start, end, before, after = describe_window(explanation)
    marked = Text(before, "dim")
    words, rest = split_words(explanation, start, end)
    levels, inside = [0, *(word.level for word in words), 0], False
    bracketed = min(_BRACKETED, max(levels) or _BRACKETED)
    for number, word in enumerate(words):
        previous, level, following = levels[number : number + 3]
        between = _UNDERLINED if inside and word.in_worst else ""
        marked.append(make_visible(word.before), _STYLES[min(previous, level)] + between)
        inside = word.in_worst
        opening = "[" if level >= bracketed > previous else ""
        closing = "]" if level >= bracketed > following else ""
        marked.append(opening + make_visible(word.shown) + closing, _STYLES[level] + (_UNDERLINED if inside else ""))
    marked.append(make_visible(rest))
    return marked.append(after, "dim")


def render_explanation(explanation: TextExplanation) -> Group:
    """Return the explanation of a text for a rich console."""
    headline = Text(": ".join(describe_decision(explanation)), "bold")
    parts: list[Text | Table] = [headline, Text(), mark_text(explanation), Text()]
    if worst := explanation.find_worst_sentence():
        sentence = make_visible(shorten(explanation.cut(worst)))
        parts.append(Text(f"{name_worst_sentence(explanation)}: {sentence}"))
    parts += [Text(describe_explained(explanation)), _tabulate_members(explanation)]
    if counted := describe_numbers(explanation):
        parts.append(Text(counted))
    for number, text in explanation.list_neighbours().items():
        parts.append(Text(f"Training text {number}: {make_visible(shorten(text))}"))
    return Group(*parts)


def format_plain(explanation: TextExplanation) -> str:
    """Return the explanation of a text without colours."""
    console = Console(file=io.StringIO(), width=_WIDTH, no_color=True, color_system=None, legacy_windows=False)
    console.print(render_explanation(explanation), soft_wrap=False)
    written = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in str(written).splitlines())


def _tabulate_members(explanation: TextExplanation) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("member")
    table.add_column("speaks against it", justify="right")
    table.add_column("marks")
    table.add_column("nearest training sequences")
    for member in explanation.members:
        numbers = ", ".join(map(str, member.neighbours[:5]))
        table.add_row(member.name, f"{member.share:+.2f}", "yes" if member.marked else "no", numbers)
    return table
