"""The report: its content, its page, and what hostile names and texts do to it."""

import copy
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from builders import correlated_sequences

from apood import APOOD, KNN, Fusion
from apood.decisions.conformal import Calibration
from apood.evaluation.metrics import auroc
from apood.explain.spans import Sentence, Span
from apood.explain.text_explanation import MemberPart, TextExplanation
from apood.report.page.render import render_report
from apood.report.page.summary import ScoredSet, _make_histograms, summarise
from apood.report.page.svg import draw_distributions, draw_lengths

EVIL = "<script>alert(1)</script>\u202e\"'"


class Page(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes = set(), set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.fixture(scope="module")
def detector():
    train, held_out = (correlated_sequences(120, 8, seed=seed) for seed in (0, 1))
    return Fusion([APOOD(steps=20, device="cpu"), KNN()]).fit(train).calibrate(held_out, accept=0.9)


def make_set(detector, name, role, count=50, shift=0.0):
    tokens = correlated_sequences(count, 8, seed=5, shift=shift)
    return ScoredSet(name, role, detector.score_samples(tokens), tokens.lengths.numpy())


def explain(text):
    words, sentences = [Span(0, len(text), 1.0, 1)], [Sentence(0, len(text), 1.0, 1)]
    return TextExplanation(
        text, -3.0, -1.0, 0.01, False, (0, len(text)), 1, words, sentences, [MemberPart("knn", 3.0, True, (4,))], 1.0
    )


@pytest.fixture(scope="module")
def content(detector):
    sets = [make_set(detector, "ID", "ID"), make_set(detector, EVIL, "OOD", shift=3.0), make_set(detector, "x", "new")]
    foreign = [(EVIL, 3, explain(EVIL + " a" * 9000))]
    training = {"documents": 120, "sequences": 130, "tokens": 900, "short": 3, "long": 12, "date": "2026-01-01"}
    return summarise(detector, {"training": training}, sets, foreign, f"apood report {EVIL}", [EVIL])


def test_the_numbers_are_those_of_the_sets(detector, content):
    known, other, _ = content["sets"]
    assert (known["inputs"], other["name"]) == (50, EVIL)
    assert other["refused"] > known["refused"]
    inside, outside = (make_set(detector, "", "ID", shift=shift).scores for shift in (0.0, 3.0))
    assert content["metrics"][0]["auroc"] == list(auroc(inside, outside))
    rows = content["calibration"]["table"]
    assert [row["accept"] for row in rows] == sorted(row["accept"] for row in rows)
    assert 0.9 in [row["accept"] for row in rows]
    refused = [row["refused"][EVIL] for row in rows]
    assert refused == sorted(refused, reverse=True), "a higher accept rate refuses fewer"
    row = next(row for row in rows if row["accept"] == 0.9)
    assert row["refused"]["ID"] == known["refused"] and row["threshold"] == content["calibration"]["threshold"]
    assert sum(content["distributions"]["shares"]["ID"]) == pytest.approx(1, abs=1e-3)
    assert content["roc"][0]["points"][0] == [0.0, 0.0] and content["roc"][0]["points"][-1] == [1.0, 1.0]
    assert content["heads"][0]["heads"] == len(detector.members_[0].queries_)


def test_the_training_is_shown_with_its_warnings(content):
    curve = content["training"][0]["curve"]
    assert [step for step, _, _ in curve] == [0, 10, 19]
    page = render_report(content, [explain("a")])
    assert "training by step</title>" in page and "ended without a warning" in page
    failed = {**content, "training": [{"member": "ap-ood", "curve": curve, "warnings": [EVIL]}]}
    page = render_report(failed, [explain("a")])
    assert "ended without a warning" not in page and page.count("&lt;script&gt;") > 1 and "<script" not in page
    unknown = {**content, "training": [{"member": "ap-ood", "curve": [], "warnings": []}]}
    page = render_report(unknown, [explain("a")])
    assert "training by step" not in page and "saved by an earlier version" in page


def test_a_training_that_stands_still_can_be_drawn(content):
    still = {**content, "training": [{"member": "ap-ood", "curve": [[0, 1.0, 0.0]], "warnings": []}]}
    assert "nan" not in render_report(still, [explain("a")])


def test_the_json_file_holds_everything(content):
    assert json.loads(json.dumps(content, allow_nan=False)) == content


def test_names_and_texts_do_nothing(content):
    page = render_report(content, [explain(EVIL)])
    found = Page(page)
    assert "script" not in found.tags and "img" not in found.tags
    assert not {name for name in found.attributes if name.startswith("on") or name in ("src", "href", "style")}
    assert "\u202e" not in page and "http" not in page.replace("http-equiv", "")
    assert page.count("Content-Security-Policy") == 1 and "default-src 'none'" in page.replace("&#39;", "'")


def test_ten_thousand_inputs_make_a_small_page(detector):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 500, 5000)
    sets = [
        ScoredSet("ID", "ID", rng.normal(size=5000), lengths),
        ScoredSet("b", "OOD", rng.normal(size=5000) - 3, lengths),
    ]
    sets[1].scores[:7] = -np.inf
    content = summarise(detector, {}, sets, [], "apood report")
    assert content["sets"][1]["without_score"] == 7
    assert len(render_report(content, [])) < 3_000_000 and len(json.dumps(content)) < 3_000_000


def test_a_threshold_that_refuses_nothing_is_not_drawn(detector):
    open_to_all = copy.copy(detector)
    open_to_all.calibration = Calibration.from_scores([-np.inf] * 20, 0.9)
    page = render_report(summarise(open_to_all, {}, [make_set(detector, "ID", "ID")], [], ""), [])
    assert "<svg" in page and 'class="threshold"' not in page and not re.search(r"\b(nan|inf)\b", page)


def test_scores_that_are_all_equal_can_be_drawn(detector):
    one = ScoredSet("ID", "ID", np.zeros(3), torch.ones(3).long().numpy())
    assert "<svg" in render_report(summarise(detector, {}, [one], [], ""), [])


@pytest.mark.parametrize("score", [0.0, -1e9, 1e17])
def test_scores_that_are_all_the_same_are_drawn(score):
    one = ScoredSet("ID", "ID", np.full(5, score), np.full(5, 3))
    assert "<svg" in draw_distributions(_make_histograms([one]), score)
    assert "<svg" in draw_lengths([{"set": "ID", "points": [[3, score], [9, score]]}], {"ID": 0}, score)
