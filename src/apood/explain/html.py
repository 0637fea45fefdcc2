"""Explanations as HTML: a fragment for notebooks and reports, and a page of its own.

Texts come from strangers, so every character of them is escaped, and characters that cannot be seen or that reorder
others are shown by their numbers. The page runs no script and loads nothing; a content security policy forbids both.
"""

import base64
import hashlib
from collections.abc import Sequence
from html import escape

from apood.explain.text_explanation import TextExplanation
from apood.explain.visible import split_visible
from apood.explain.wording import (
    describe_decision,
    describe_explained,
    describe_window,
    name_worst_sentence,
    shorten,
    split_words,
)

__all__ = ["STYLE", "escape_text", "make_policy", "render_body", "render_fragment", "render_page"]

STYLE = """
.apood { --ink: #1b1b1f; --paper: #ffffff; --faint: #5d5d66; --line: #d5d5dc; --low: #fff3b0; --mid: #ffd27a;
  --high: #ffb0a3; --bad: #8c1d18; --bad-tint: #fde6e2; --good: #14532d; --good-tint: #e0f3e5;
  color: var(--ink); background: var(--paper); font: 1rem/1.55 system-ui, sans-serif;
  overflow-wrap: anywhere; }
@media screen and (prefers-color-scheme: dark) { .apood { --ink: #ececf1; --paper: #17171b; --faint: #a9a9b5;
  --line: #3d3d47; --low: #4a4215; --mid: #6b4a0c; --high: #8a2b20; --bad: #ffb4a9; --bad-tint: #42201c;
  --good: #a6e3b8; --good-tint: #17341f; } }
@media print { .apood { --ink: #000; --faint: #444; print-color-adjust: exact; } }
.apood .text { unicode-bidi: isolate; white-space: pre-wrap; border-left: .25rem solid var(--line); margin: .75rem 0;
  padding: .25rem .75rem; overflow: hidden; }
.apood .decision strong { color: var(--ink); background: var(--line); border-radius: 1rem; padding: .1rem .7rem .15rem;
  margin-right: .3rem; }
.apood .decision .refused { color: var(--bad); background: var(--bad-tint); }
.apood .decision .accepted { color: var(--good); background: var(--good-tint); }
.apood mark { color: inherit; border-radius: .15rem; padding: 0 .08rem; unicode-bidi: isolate; }
.apood .worst { border-bottom: .12rem dotted var(--bad); }
.apood .l1 { background: var(--low); }
.apood .l2 { background: var(--mid); text-decoration: underline; }
.apood .l3 { background: var(--high); text-decoration: underline; font-weight: 600; }
.apood .hidden { border: 1px dotted; border-radius: .2rem; font-size: .75em; }
.apood .note { color: var(--faint); }
.apood table { border-collapse: collapse; font-size: .9rem; margin: .5rem 0; overflow-wrap: break-word; }
.apood th, .apood td { text-align: left; padding: .25rem .9rem .25rem 0; vertical-align: top; max-width: 16rem; }
.apood th { color: var(--faint); font-weight: 500; }
.apood tr + tr > *, .apood tbody tr > * { border-top: 1px solid var(--line); }
.apood td.number, .apood th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.apood .wide { overflow-x: auto; }
"""

_PAGE_STYLE = """
body { margin: 0; } main { max-width: 46rem; margin: 0 auto; padding: 1rem; min-height: 100vh; box-sizing: border-box; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin: 1.5rem 0 .25rem; }
"""


def escape_text(text: str) -> str:
    """Return a text as HTML that shows every character of it and does nothing else."""
    return "".join(
        f'<span class="hidden">{escape(part)}</span>' if hidden else escape(part)
        for part, hidden in split_visible(text)
    )


def make_policy(*styles: str) -> str:
    """Return a content security policy that allows these style sheets and nothing else."""
    hashes = [base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() for style in styles]
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return f"default-src 'none'; style-src {allowed}; base-uri 'none'; form-action 'none'"


def render_page(explanations: Sequence[TextExplanation]) -> str:
    """Return a whole page with the explanations of some texts."""
    style = STYLE + _PAGE_STYLE
    numbered = len(explanations) > 1
    bodies = [
        f"<section>{f'<h2>Text {number}</h2>' if numbered else ''}{render_body(explanation)}</section>"
        for number, explanation in enumerate(explanations)
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{make_policy(style)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>Explanation by apood</title>\n<style>{style}</style>\n</head>\n"
        f'<body class="apood"><main>\n<h1>Why a text has its score</h1>\n{"".join(bodies)}\n</main></body>\n</html>\n'
    )


def render_fragment(explanation: TextExplanation) -> str:
    """Return the explanation with its style sheet, to be shown inside another page such as a notebook."""
    return f'<div class="apood"><style>{STYLE}</style>{render_body(explanation)}</div>'


def render_body(explanation: TextExplanation) -> str:
    """Return the explanation for a page that has `STYLE`, inside an element of the class `apood`."""
    start, end, before, after = describe_window(explanation)
    parts = [
        _render_decision(explanation),
        f'<div class="text" dir="auto">{_render_note(before)}{_render_marks(explanation, start, end)}'
        f"{_render_note(after)}</div>",
    ]
    if worst := explanation.find_worst_sentence():
        sentence = escape_text(shorten(explanation.cut(worst)))
        parts.append(f"<p>{name_worst_sentence(explanation)}: <bdi class='worst'>{sentence}</bdi></p>")
    parts += [f"<p>{escape_text(describe_explained(explanation))}</p>", _render_members(explanation)]
    if neighbours := explanation.list_neighbours():
        items = [
            f"<li>Training text {number}: <bdi>{escape_text(shorten(text))}</bdi></li>"
            for number, text in neighbours.items()
        ]
        parts.append(f"<ul>{''.join(items)}</ul>")
    return "".join(parts)


def _render_decision(explanation: TextExplanation) -> str:
    """Return the decision with its numbers."""
    word, numbers = describe_decision(explanation)
    kinds = {None: "unknown", True: "accepted", False: "refused"}
    return (
        f'<p class="decision"><strong class="{kinds[explanation.accepted]}">{word}</strong> {escape_text(numbers)}</p>'
    )


def _render_marks(explanation: TextExplanation, start: int, end: int) -> str:
    """Return the text from `start` to `end` with its suspicious words and its most suspicious sentence marked."""
    parts, inside = [], False
    words, rest = split_words(explanation, start, end)
    for before, shown, word, level, in_worst in words:
        if inside and not in_worst:
            parts.append("</span>")
        parts.append(escape_text(before))
        if in_worst and not inside:
            parts.append('<span class="worst">')
        inside = in_worst
        opening, closing = (
            (f'<mark class="l{level}" title="{word.contribution:+.3g}">', "</mark>") if level else ("", "")
        )
        parts.append(f"{opening}{escape_text(shown)}{closing}")
    return "".join([*parts, "</span>" if inside else "", escape_text(rest)])


def _render_note(note: str) -> str:
    return f'<span class="note">{escape(note)}</span>' if note else ""


def _render_members(explanation: TextExplanation) -> str:
    rows = [
        f"<tr><td>{escape_text(member.name)}</td><td class='number'>{member.share:+.2f}</td>"
        f"<td>{'yes' if member.marked else 'no'}</td><td>{', '.join(map(str, member.neighbours[:5])) or '–'}</td></tr>"
        for member in explanation.members
    ]
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="Members"><table><thead><tr><th>member</th>'
        '<th class="number">speaks against it</th><th>marks</th><th>nearest training sequences</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
