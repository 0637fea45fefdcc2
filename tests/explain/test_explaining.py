"""Explanations of texts: their numbers, and what each output makes of ordinary and of hostile texts."""

import json
import math
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from tiny_models import WORDS

from apood import APOOD, KNN, Fusion, Mahalanobis, TextDetector, TextEncoder
from apood.explain.explaining import choose_marks, explain_texts
from apood.explain.html import render_page
from apood.explain.spans import Span
from apood.explain.text_explanation import MemberPart, TextExplanation
from apood.explain.wording import describe_explained
from apood.support.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore:Training has not settled")
HOSTILE = {
    "script": "word1 <script>alert(1)</script> <img src=x onerror=alert(1)> word2 \"'><svg onload=alert(1)>",
    "right to left": "word1 \u202eevil\u202c \u2066word2\u2069 שלום \u200f",
    "zero width": "wo\u200brd1 \u2060w\ufeffo\u00adrd2\u200d \U000e0041\U000e0100",
    "no space": "a" * 1_000_000,
    "surrogates": "word1 \ud800 \udfff word2 \ud83d\ude00",
    "control": "word1 \x00\x1b]0;title\x07\x1b[31m word2 \x85\u2028 \r word3",
    "rich": "[red]word1[/red] [link=http://x]word2[/link] :smile:",
    "marks": "Z\u0300\u0301\u0302\u0303\u0304\u0305 word1",
}
ALLOWED = {"html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "section", "p", "strong", "div",
           "span", "mark", "bdi", "table", "thead", "tbody", "tr", "th", "td"}  # fmt: skip


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def fitted(models, texts):
    members = [APOOD(steps=5, device="cpu"), KNN(k=2), Mahalanobis(), KNN(view="summary")]
    return TextDetector(models("bert"), Fusion(members), accept=0.9).fit(texts)


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_text_does_nothing_in_any_output(fitted, kind):
    explanation = fitted.explain([HOSTILE[kind]])[0]
    kept = json.loads(json.dumps(explanation.to_json()))["text"]
    assert kept.encode("utf-16", "surrogatepass") == HOSTILE[kind].encode("utf-16", "surrogatepass"), "in JSON, too"
    for page in (explanation.to_html(), explanation._repr_html_()):
        page.encode()
        found = Tags()
        found.feed(page)
        assert found.tags <= ALLOWED, "no tag of the text is a tag of the page"
        assert not {name for name in found.attributes if name.startswith("on") or name in ("src", "href", "style")}
        assert not any(c in page for c in "\u202e\u2066\u200b\u2060\ufeff\x1b\x00\u2028"), "nothing hidden is left"
        assert len(page) < 100_000, "a page stays small"
    shown = str(explanation)
    shown.encode()
    assert not any(c in shown for c in "\u202e\u200b\x1b\x00\x07"), "no character commands the terminal"
    assert len(shown) < 100_000


def test_brackets_that_rich_would_interpret_are_shown(fitted):
    assert "[red]word1[/red]" in str(fitted.explain([HOSTILE["rich"]])[0])


def test_words_and_members_sum_to_what_they_explain(fitted, texts):
    explanation = fitted.explain([texts[0]])[0]
    assert sum(member.share for member in explanation.members) == pytest.approx(-explanation.score)
    assert [member.marked for member in explanation.members] == [True, False, False, False]
    attention = explanation.members[0]
    against = sum(max(member.share, 0) for member in explanation.members)
    most = max(attention.share, 0) / against if against else 1.0
    assert 0 <= explanation.explained <= most
    assert [len(member.neighbours) for member in explanation.members] == [0, 2, 0, 0]
    assert all(0 <= number < fitted.facts.training.documents for number in explanation.members[1].neighbours)
    assert explanation.accepted == (fitted.predict([texts[0]])[0] == 1)
    assert explanation.p_value == fitted.p_values([texts[0]])[0]
    assert [explanation.cut(word) for word in explanation.words] == texts[0].split()


@pytest.mark.parametrize("kept", [10_000, 50])
def test_the_texts_of_neighbours_are_shown_on_request(models, texts, kept, monkeypatch):
    """A text is its own nearest neighbour, if it was not held out."""
    monkeypatch.setattr("apood.pipeline.copies._MOST", kept)
    given = [*texts[:150], " ".join(["word7"] * 80), *texts[150:]]  # one has several windows
    detector = TextDetector(models("bert"), KNN(k=1), accept=0.9).fit(given)
    found = detector.explain(given, training=given)
    nearest = [explanation.members[0] for explanation in found]
    own = [number == member.neighbours[0] for number, member in enumerate(nearest)]
    copies = [given[member.neighbours[0]] == text for text, member in zip(given, nearest, strict=True)]
    assert sum(copies) >= detector.facts.training.documents and sum(own) > 0.7 * len(given)
    assert all(member.neighbour_texts == (given[member.neighbours[0]],) for member in nearest)
    assert f"Training text {nearest[0].neighbours[0]}: " in str(found[0]) and "Training text" in found[0].to_html()
    assert detector.explain(given[:1])[0].members[0].neighbour_texts == ()
    for other in (given[:-1], [*given[1:], given[0]]):
        with pytest.raises(InputError, match="not the texts that the detector was fitted on"):
            detector.explain(given[:1], training=other)
    detector.facts = replace(detector.facts, sketches=None)
    with pytest.raises(InputError, match="keeps nothing about its training texts"):
        detector.explain(given[:1], training=given)


def test_all_contributions_belong_to_tokens(models, texts):
    """Without special tokens, the words are the whole sequence."""
    encoder = TextEncoder(models("bert"), special_tokens=False)
    detector = APOOD(steps=5, device="cpu").fit(encoder.encode(texts))
    explanation = explain_texts(detector, encoder, [texts[3]])[0]
    total = float(detector.explain(encoder.encode([texts[3]])).totals)
    assert sum(word.contribution for word in explanation.words) == pytest.approx(total)
    assert sum(sentence.contribution for sentence in explanation.sentences) == pytest.approx(total)
    assert explanation.accepted is None and "not calibrated" in str(explanation)
    assert 0 < sum(head.share for head in explanation.heads) <= 1


def test_special_tokens_are_not_explained_by_words(models, texts):
    encoder = TextEncoder(models("bert"))
    detector = Mahalanobis().fit(encoder.encode(texts))
    explanation = explain_texts(detector, encoder, [texts[3]])[0]
    against = detector.explain(encoder.encode([texts[3]])).contributions.values.clamp_min(0)
    expected = float(against[1:-1].sum() / against.sum())
    assert 0 < expected < 1 and explanation.explained == pytest.approx(expected)
    assert f"all words make up {expected:.0%} of its distance" in str(explanation)


def test_a_text_that_was_cut_shows_only_what_was_judged(models, texts):
    encoder = TextEncoder(models("bert"), max_tokens=6, on_long="beginning")
    detector = Mahalanobis().fit(encoder.encode(texts))
    cut, whole = explain_texts(detector, encoder, ["word1 word2 word3 word4 word5 word6", " word1 "])
    assert cut.truncated and cut.window == (0, 23) and len(cut.words) == 4 and cut.to_json()["truncated"]
    for shown in (" ".join(str(cut).split()), cut.to_html()):
        assert "Only the beginning of the text was judged." in shown and "12 more characters, not judged" in shown
        assert "word5" not in shown
    assert not whole.truncated and whole.window == (0, 7)
    long = TextEncoder(models("bert"), max_tokens=8)
    with pytest.raises(InputError, match=r"The text at index 17 has .* windows"):
        explain_texts(Mahalanobis().fit(long.encode(texts)), long, ["word1"] * 17 + ["word1 " * 2000])


def test_a_text_of_unusual_length_says_so(fitted, texts):
    long, usual = fitted.explain(["word1 " * 60, texts[3]])
    assert long.note is not None and long.note.startswith("It is longer than 99% of the texts")
    assert long.note in " ".join(str(long).split()) and long.note in long.to_html()
    assert usual.note is None and long.to_json()["note"] == long.note


def test_a_long_text_is_explained_by_its_worst_window(fitted):
    text = " ".join(["word1"] * 40 + ["unknown"] * 12 + ["word2"] * 40)
    explanation = fitted.explain([text])[0]
    start, end = explanation.window
    assert explanation.windows > 1 and 0 <= start < end <= len(text)
    assert all(start <= word.start and word.end <= end for word in explanation.words)
    assert explanation.score == pytest.approx(fitted.score_samples([text])[0], rel=1e-4)
    left_out = start + len(text) - end
    assert left_out > 0 and "characters" in explanation.to_html()


def make_stories(count, seed, *, foreign=None, sentences=12, words=7):
    """Return texts with a few words each; the sentence with the number `foreign` has other words."""
    generator = torch.Generator().manual_seed(seed)
    stories = []
    for _ in range(count):
        order = torch.randperm(len(WORDS), generator=generator)
        drawn = torch.randint(5, (sentences, words), generator=generator)
        if foreign is not None:
            drawn[foreign] += 5
        stories.append(" ".join(" ".join(WORDS[n] for n in own) + "." for own in order[drawn].tolist()))
    return stories


@pytest.fixture(scope="module")
def comparing(models):
    """A detector for which stories have several windows."""
    encoder = TextEncoder(models("bert"), max_tokens=40)
    return TextDetector(encoder, Fusion([KNN()], sentences=True), accept=0.9).fit(make_stories(200, 0))


@pytest.mark.parametrize("foreign", [0, 5, 9, 11])
def test_a_sentence_that_decides_is_shown_in_whatever_window_it_is(comparing, foreign):
    """All sentences are compared in the first window, so that its score is the lowest."""
    stories = make_stories(12, 5, foreign=foreign)
    found = comparing.explain(stories)
    assert [one.score for one in found] == pytest.approx(comparing.score_samples(stories), rel=1e-4)
    refused = [one for one in found if one.decided == "coherence" and not one.accepted]
    assert len(refused) >= 5
    for one in refused:
        worst = one.find_worst_sentence()
        assert one.windows >= 3 and one.text[: worst.start].count(".") == foreign
        assert one.window[0] <= worst.start < worst.end <= one.window[1]
        assert [member.share for member in one.members] == [0.0, pytest.approx(-one.score)]
        assert not any(word.contribution for word in one.words) and one.explained == 0
        assert not any(member.marked for member in one.members)
        said = "coherence speaks most against this text. No word is marked: coherence compares whole sentences."
        assert said in " ".join(str(one).split()) and said in one.to_html()


def test_sentences_are_compared_in_the_window_that_another_member_decides_by(comparing):
    """If it is not the first one, the ratings are still those of all sentences of the text."""
    stories = make_stories(60, 6)
    judge = comparing.detector.members_[-1]
    further = [one for one in comparing.explain(stories) if one.decided == "knn" and one.window[0] > 0]
    assert further
    for one in further:
        rated = judge.rate_sentences(comparing.encoder.encode([one.text])[:1]).values
        first = one.text[: one.sentences[0].start].count(".")
        expected = rated[first : first + len(one.sentences)].tolist()
        assert [sentence.suspicion for sentence in one.sentences] == pytest.approx(expected, abs=1e-6)


def test_without_attention_all_members_mark(models, texts):
    encoder = TextEncoder(models("bert"))
    tokens = encoder.encode(texts)
    explanation = Fusion([KNN(), Mahalanobis()]).fit(tokens).explain(tokens)
    marks = choose_marks(explanation)
    assert torch.equal(marks.contributions.values, explanation.contributions.values) and marks.members == {0, 1}


def test_an_empty_text_is_refused(fitted):
    with pytest.raises(InputError, match="The text at index 1 is empty"):
        fitted.explain(["word1", " "])


def test_a_page_of_several_texts_numbers_them(fitted, texts):
    page = render_page(fitted.explain(texts[:2]))
    assert page.count("<section>") == 2 and "<h2>Text 1</h2>" in page


@pytest.mark.parametrize(
    ("shares", "decided"), [((-2.0, -1.0, 0.0), "knn"), ((0.0, 0.0, -0.5), "coherence"), ((2.0, -1.0, 0.0), "ap-ood")]
)
def test_a_side_that_does_not_decide_says_nothing_for_or_against_a_text(shares, decided):
    """Of a fusion with `sentences`, either coherence or all others decide, and those that do not have a share of 0."""
    members = [MemberPart(*given, True) for given in zip(("ap-ood", "knn", "coherence"), shares, strict=True)]
    assert TextExplanation("", -sum(shares), 0.0, 0.5, True, (0, 0), 1, [], [], members, 1.0).decided == decided


@pytest.mark.parametrize(
    ("shares", "contribution", "said"),
    [
        (
            (0.0, -0.5),
            0.0,
            "No member speaks against this text. No word is marked: coherence compares whole sentences.",
        ),
        ((-0.5, 0.0), 0.0, "No member speaks against this text. No word is marked."),
        ((-0.5, 0.0), -0.5, "No member speaks against this text. No word is marked."),
        ((-0.5, 0.0), 0.1, "No member speaks against this text; the marks show the least ordinary words."),
        (
            (0.0, 2.0),
            0.0,
            "coherence speaks most against this text. No word is marked: coherence compares whole sentences.",
        ),
        ((2.0, 0.0), -0.1, "knn speaks most against this text. No word is marked."),
        ((2.0,), 0.0, "No word is marked."),
        ((2.0,), 0.1, "The marked words show what knn sees; all words make up 40% of its distance."),
    ],
)
def test_marks_are_only_spoken_of_if_there_are_any(shares, contribution, said):
    members = [MemberPart(name, share, bool(share)) for name, share in zip(("knn", "coherence"), shares, strict=False)]
    words = [Span(0, 4, contribution, 1)]
    explanation = TextExplanation("word", -sum(shares), 0.0, 0.5, True, (0, 4), 1, words, [], members, 0.4)
    assert describe_explained(explanation) == said


def test_infinite_numbers_are_null_in_json():
    members = [MemberPart("knn", math.inf, True), MemberPart("coherence", 0.0, False)]
    explanation = TextExplanation("", -math.inf, -math.inf, 0.0, False, (0, 0), 1, [], [], members, math.nan)
    content = json.loads(json.dumps(explanation.to_json(), allow_nan=False))
    assert [member["share"] for member in content["members"]] == [None, 0.0]
    assert content["score"] is content["threshold"] is content["explained"] is None
