"""`apood explain`: texts and files, three formats, and what it refuses."""

import json

import pytest

WORDS = "word1 word2 unknown <b>word3</b>"


@pytest.fixture(scope="module")
def detector(apood, stores, tmp_path_factory):
    folder = tmp_path_factory.mktemp("explain") / "detector"
    apood("fit", stores / "train", "--out", folder, "--method", "mahalanobis")
    apood("calibrate", folder, stores / "held-out")
    return folder


def test_a_text_is_marked(apood, detector):
    shown = apood("explain", detector, WORDS).stdout
    assert "p-value" in shown and "mahalanobis" in shown
    for word in WORDS.split():
        assert word in shown
    assert "unknown" in apood("explain", detector, "unknown").stdout


def test_a_file_is_explained_text_by_text(apood, detector, tmp_path):
    (tmp_path / "texts.txt").write_text("word1 word2\nword3 \x1b[31m\n")
    rows = [
        json.loads(line)
        for line in apood("explain", detector, tmp_path / "texts.txt", "--format", "json").stdout.splitlines()
    ]
    assert [row["text"] for row in rows] == ["word1 word2", "word3 \x1b[31m"]
    assert all({"score", "p_value", "accepted", "words", "sentences", "members"} <= row.keys() for row in rows)


def test_a_page_is_written(apood, refused, detector, tmp_path):
    file = tmp_path / "why.html"
    assert "Explained 1 text" in apood("explain", detector, WORDS, "--format", "html", "--out", file).stdout
    page = file.read_text()
    assert "Content-Security-Policy" in page and "<b>" not in page and "&lt;b&gt;" in page
    assert "exists already" in refused("explain", detector, WORDS, "--out", file)


def test_training_texts_are_shown_if_they_are_named(apood, refused, detector, model, files, texts, tmp_path):
    built, train = tmp_path / "built", files / "train.jsonl"
    apood("build", train, "--model", model, "--out", built, "--method", "knn", "--set", "k=1")
    command = ("explain", built, texts["train"][3], "--format", "json")
    (member,) = json.loads(apood(*command).stdout)["members"]
    assert member["neighbours"] and not member.get("neighbour_texts")
    (member,) = json.loads(apood(*command, "--training", train).stdout)["members"]
    assert member["neighbour_texts"] == [texts["train"][number] for number in member["neighbours"]]
    assert "not the texts that the detector was fitted on" in refused(*command, "--training", files / "test.jsonl")
    assert "is for detectors of `apood build`" in refused("explain", detector, WORDS, "--training", train)


def test_training_texts_are_read_like_those_of_the_build(apood, model, texts, tmp_path):
    """From conversations, without those that were skipped: a bad record, and a text that is too long."""
    given = [*texts["train"][:50], "word1 " * 3000, *texts["train"][50:]]
    train = tmp_path / "chats.jsonl"
    rows = [json.dumps({"text": [{"role": "user", "content": text}]}) for text in given]
    train.write_text("\n".join([rows[0], "{", *rows[1:]]))
    command = ("build", train, "--model", model, "--method", "knn", "--set", "k=1", "--skip-bad")
    apood(*command, "--chat", "last-user", "--out", tmp_path / "built")
    explained = apood("explain", tmp_path / "built", given[60], "--format", "json", "--training", train).stdout
    (member,) = json.loads(explained)["members"]
    assert member["neighbour_texts"] == [given[number] for number in member["neighbours"]]


def test_what_cannot_be_explained_is_refused(apood, refused, detector, stores, tmp_path):
    assert "is empty" in refused("explain", detector, " ")
    assert "leave out --field" in refused("explain", detector, "word1 word2", "--field", "text")
    for mistyped in ("no-such-file.jsonl", "no-such-*.jsonl"):
        assert f"'{mistyped}'" in refused("explain", detector, mistyped)
    apood("fit", stores / "train", "--out", tmp_path / "trusted", "--method", "trusted")
    assert "not made of parts that belong to single tokens" in refused("explain", tmp_path / "trusted", "word1")
