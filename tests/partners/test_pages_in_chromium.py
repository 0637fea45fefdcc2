"""Explanations and reports in a real browser: hostile texts do nothing, the layout holds, and axe has no complaint."""

import shutil

import numpy as np
import pytest
from builders import correlated_sequences

from apood import KNN
from apood.explain.html import render_fragment, render_page
from apood.explain.spans import Span, find_sentences, find_words
from apood.explain.text_explanation import MemberPart, TextExplanation
from apood.report.page.render import render_report
from apood.report.page.summary import ScoredSet, summarise

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.partners,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: run make test-partners"),
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
    sentences = [Span(one.start, one.end, 1.0, 3) for one in find_sentences(text)]
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


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as program:
        running = program.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(params=PAGES)
def address(request, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(PAGES[request.param](), encoding="utf-8")
    return file.as_uri()


def open_page(browser, address, events, **options):
    page = browser.new_context(**options).new_page()
    page.on("console", lambda message: events.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: events.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (events.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: events.append(f"request: {request.url}") if request.url != address else None)
    page.goto(address)
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_happens_and_nothing_is_wider_than_the_screen(browser, address, scheme):
    for width in WIDTHS:
        events = []
        page = open_page(browser, address, events, viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.wait_for_timeout(100)
        assert events == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.scripts.length + document.images.length + frames.length") == 0
        assert page.locator("h1").first.is_visible(), "no text hides the page"
        page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser, address, scheme):
    from axe_playwright_python.sync_playwright import Axe

    # only here scripts are allowed, because axe is one
    page = open_page(browser, address, [], color_scheme=scheme, bypass_csp=True)
    found = Axe().run(page).response["violations"]
    assert not [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]
    page.context.close()


def test_the_policy_stops_a_script_that_got_through(browser, tmp_path):
    """The policy is the second line of defence; here the first one is missing."""
    page_with_script = PAGES["explanation"]().replace("</main>", "<script>alert(1)</script><img src=x></main>")
    file = tmp_path / "page.html"
    file.write_text(page_with_script, encoding="utf-8")
    events = []
    open_page(browser, file.as_uri(), events).wait_for_timeout(100)
    assert not [event for event in events if event.startswith("dialog")]
    assert any("Content Security Policy" in event for event in events)
