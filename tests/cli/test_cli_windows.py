"""Long texts on the command line: windows, refusals, and what the rows say."""

import json

import pytest

from apood import TokenStore
from apood.tokens.documents import count_documents


def write_lines(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture(scope="module")
def trained(apood, model, files, tmp_path_factory):
    """A detector of windows of 6 tokens."""
    folder = tmp_path_factory.mktemp("windows")
    for name in ("train", "held-out"):
        result = apood("embed", files / f"{name}.jsonl", "--model", model, "--out", folder / name, "--max-tokens", 6)
        assert " longer than 6 tokens, in " in result.stdout and "windows" in result.stdout
    apood("fit", folder / "train", "--method", "mahalanobis", "--out", folder / "detector")
    apood("calibrate", folder / "detector", folder / "held-out", "--accept", 0.9)
    return folder


def read_rows(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_foreign_tail_is_ood(apood, trained, texts, tmp_path):
    ordinary = next(text for text in texts["held-out"] if len(text.split()) == 5)
    foreign = " ".join(texts["other"][:4])
    rows = read_rows(
        apood("score", trained / "detector", write_lines(tmp_path / "a.jsonl", [ordinary, f"{ordinary} {foreign}"]))
    )
    assert [row["decision"] for row in rows] == ["ID", "OOD"]
    assert rows[0]["windows"] == 1 and rows[1]["windows"] > 1 and rows[1]["tokens"] >= len(foreign.split()) + 5
    assert rows[1]["score"] < rows[0]["score"] and rows[0]["note"] is None


def test_scores_of_texts_and_of_their_store_agree(apood, trained, model, files, tmp_path):
    apood("embed", files / "test.jsonl", "--model", model, "--out", tmp_path / "store", "--max-tokens", 6)
    result = apood("score", trained / "detector", files / "test.jsonl")
    from_texts, from_store = read_rows(result), read_rows(apood("score", trained / "detector", tmp_path / "store"))
    store = TokenStore(tmp_path / "store")
    assert len(from_texts) == len(from_store) == count_documents(store) < len(store)
    for one, other in zip(from_texts, from_store, strict=True):
        assert (one["tokens"], one["windows"]) == (other["tokens"], other["windows"])
        assert one["score"] == pytest.approx(other["score"], rel=0.02)
    long = sum(row["windows"] > 1 for row in from_texts)
    assert result.stderr == f"{long} inputs had several windows, and the worst one decided.\n"
    facts = json.loads(apood("inspect", tmp_path / "store", "--json").stdout)
    assert (facts["sequences"], facts["documents"]) == (len(store), count_documents(store))
    printed = json.loads(apood("calibrate", trained / "detector", trained / "held-out", "--json").stdout)
    assert printed["sequences"] == count_documents(TokenStore(trained / "held-out"))


def test_what_was_cut_is_said(apood, model, files, tmp_path):
    for name in ("train", "held-out"):
        options = ["--max-tokens", 6, "--on-long", "beginning", "--out", tmp_path / name]
        apood("embed", files / f"{name}.jsonl", "--model", model, *options)
    apood("fit", tmp_path / "train", "--method", "knn", "--out", tmp_path / "detector")
    result = apood("score", tmp_path / "detector", files / "test.jsonl")
    rows = read_rows(result)
    assert {row["windows"] for row in rows} == {1}
    count = int(result.stderr.split()[0])
    assert 0 < count <= sum(row["tokens"] == 6 for row in rows)
    assert result.stderr == f"{count} inputs had more than 6 tokens: only the beginning was scored.\n"


def test_a_text_of_too_many_windows_gets_a_row(apood, trained, tmp_path):
    given = write_lines(tmp_path / "a.jsonl", ["word1 word2", "word1 " * 500, "word3"])
    result = apood("score", trained / "detector", given)
    rows = read_rows(result)
    assert [row["index"] for row in rows] == [0, 1, 2] and "64 windows" not in f"{rows[0]['note']} {rows[2]['note']}"
    assert rows[1]["score"] is None and rows[1]["decision"] == "OOD" and rows[1]["windows"] == rows[1]["tokens"] == 0
    assert rows[1]["note"].startswith("Line 2 of") and "more than the limit of 64 windows per text" in rows[1]["note"]
    assert "Warning: 1 of 3 texts are too long to be scored; their score is -inf" in result.stderr
    assert read_rows(apood("score", trained / "detector", given, "--skip-bad")) == rows


def test_long_texts_can_be_refused(apood, refused, model, tmp_path):
    given = write_lines(tmp_path / "a.jsonl", ["word1 word2", "word1 " * 9, "word3"])
    command = ("embed", given, "--model", model, "--out", tmp_path / "store", "--max-tokens", 4, "--on-long", "refuse")
    sentence = refused(*command)
    assert sentence.startswith("Line 2 of") and "a text of more than max_tokens=4 is refused" in sentence
    assert "add --skip-bad to skip such records" in sentence and "1 text is in" in sentence
    result = apood(*command, "--resume", "--skip-bad")
    assert "Embedded 1 text" in result.stdout and "1 bad one skipped" in result.stdout
    assert TokenStore(tmp_path / "store").encoder["on_long"] == "refuse"


def test_bad_values_and_modes_are_refused(refused, model, files, tmp_path):
    command = ("embed", files / "test.jsonl", "--model", model, "--out", tmp_path / "store")
    assert "'tail'" in refused(*command, "--on-long", "tail")
    assert "on_long must be beginning or refuse in mode output" in refused(
        *command, "--mode", "output", "--on-long", "windows"
    )
    assert not (tmp_path / "store").exists()


def test_stores_of_another_on_long_are_another_encoder(apood, refused, trained, model, files, tmp_path):
    options = ("--model", model, "--out", tmp_path / "store", "--max-tokens", 6, "--on-long", "beginning")
    result = apood("embed", files / "test.jsonl", *options)
    assert "cut at 6 tokens" in result.stdout
    sentence = refused("score", trained / "detector", tmp_path / "store")
    assert "on_long beginning" in sentence and "on_long windows" in sentence


def test_commands_count_documents(apood, trained, model, files, tmp_path):
    apood("embed", files / "other.jsonl", "--model", model, "--out", tmp_path / "other", "--max-tokens", 6)
    rows = json.loads(
        apood(
            "evaluate",
            trained / "detector",
            "--id",
            trained / "held-out",
            "--ood",
            f"other={tmp_path / 'other'}",
            "--json",
        ).stdout
    )
    assert rows
    apood(
        "compare", "--id", trained / "train", "--ood", f"other={tmp_path / 'other'}", "--method", "knn", "--splits", 2,
        "--out", tmp_path / "compared",
    )  # fmt: skip
