"""Explanations and reports in a real browser: hostile texts do nothing, the layout holds, and axe has no complaint."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import correlated_sequences
from environments import find_python, needs

from apood import KNN
from apood.explain.html import render_fragment, render_page
from apood.explain.spans import Span, find_sentences, find_words
from apood.explain.text_explanation import MemberPart, TextExplanation
from apood.report.page.render import render_report
from apood.report.page.summary import ScoredSet, summarise

pytestmark = [
    *needs("browser"),
    pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed: run make test-partners"),
]
HOSTILE = [
    "word <script>alert(1)</script> <img src=x onerror=alert(1)> <svg onload=alert(1)> \"'><iframe src=//x.example>",
    "</style><style>body{display:none}</style></div></main><script>fetch('//x.example')</script> {{ 7 * 7 }}",
    "word \u202eevil\u202c \u2066word\u2069 שלום עולם \u200f مرحبا",
    "wo\u200brd \u2060w\ufeffo\u00adrd \U000e0041\U000e0100",
    "a" * 1_000_000,
    "word \ud800 \udfff \ud83d\ude00",
    "\x00\x1b]0;x\x07 \x85\u2028 word",
    "Z" + "\u0300\u0301\u0302\u0489" * 40 + " word",
]
WIDTHS = (320, 390, 1200)


def explain(text):
    words = [Span(word.start, word.end, float(number % 4), 1) for number, word in enumerate(find_words(text[:9000]))]
    sentences = [replace(one, contribution=1.0, tokens=3) for one in find_sentences(text)]
    members = [MemberPart(text[:50], 3.0, True, (1, 2)), MemberPart("knn", -1.0, False)]
    return TextExplanation(text, -4.0, -1.0, 0.01, False, (0, len(text)), 1, words, sentences, members, 0.7)


def make_report():
    detector = KNN().fit(correlated_sequences(60, 8)).calibrate(correlated_sequences(60, 8, seed=1))
    rng = np.random.default_rng(0)
    sets = [
        ScoredSet(name, role, rng.normal(size=200) - shift, rng.integers(1, 400, 200))
        for name, role, shift in (("ID", "ID", 0), (HOSTILE[0], "OOD", 3), ("b" * 300, "new", 1))
    ]
    foreign = [(HOSTILE[0], number, explain(text)) for number, text in enumerate(HOSTILE)]
    content = summarise(detector, {}, sets, foreign, HOSTILE[1], [HOSTILE[0], "c" * 500])
    return render_report(content, [one for _, _, one in foreign])


PAGES = {
    "explanation": lambda: render_page([explain(text) for text in HOSTILE]),
    "report": make_report,
    "notebook": lambda: (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>notebook</title></head><body><main>'
        "<h1>notebook</h1>"
        f"{''.join(render_fragment(explain(text)) for text in HOSTILE)}</main></body></html>"
    ),
}


def open_file(page, folder):
    """Return what happens if Chromium opens the page, once per width and colour scheme."""
    file = folder / "page.html"
    file.write_text(page, encoding="utf-8")
    command = [find_python("browser"), Path(__file__).with_name("open_file.py"), file, *WIDTHS]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", PAGES)
def test_hostile_texts_do_nothing_and_the_layout_holds(kind, tmp_path):
    for seen in open_file(PAGES[kind](), tmp_path):
        assert seen["events"] == [], "no console message, request, error or dialog"
        assert seen["overflow"] <= 0, "nothing is wider than the screen"
        assert seen["loaded"] == 0, "there is no script, image or frame"
        assert seen["visible"], "no text hides the page"
        assert not [one for one in seen.get("violations", []) if one[1] in ("serious", "critical")]


def test_the_policy_stops_a_script_that_got_through(tmp_path):
    """The policy is the second line of defence; here the first one is missing."""
    page = PAGES["explanation"]().replace("</main>", "<script>alert(1)</script><img src=x></main>")
    for seen in open_file(page, tmp_path):
        assert "dialog" not in seen["events"]
        assert any("Content Security Policy" in event for event in seen["events"])
