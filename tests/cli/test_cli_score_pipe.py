"""`apood score` in a pipe: rows come as inputs do, with the fields that are asked for."""

import json

import pytest
from processes import Program


def test_a_row_comes_before_the_next_text_is_written(calibrated, model):
    with Program("score", calibrated, "-", "--model", model) as program:
        for index, text in enumerate(["word1 word2", "word3", "word9 word10"]):
            program.stdin.write(f"{text}\n")
            program.stdin.flush()  # the program waits for more, and must answer nevertheless
            assert json.loads(program.stdout.readline())["index"] == index
        program.stdin.close()
        assert program.end() == (0, "", "")


def test_a_pipe_without_texts_is_named(refused, calibrated):
    assert refused("score", calibrated, "-", input="") == "There is no text in standard input."


def test_named_fields_are_kept(apood, refused, calibrated, files, tmp_path):
    result = apood("score", calibrated, files / "other.jsonl", "--keep", "number")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [list(row)[:3] for row in rows] == [["index", "number", "score"]] * 40
    assert [row["number"] for row in rows] == list(range(40))
    assert "no field 'id'" in refused("score", calibrated, files / "other.jsonl", "--keep", "id")
    assert "a column of the rows has that name" in refused(
        "score", calibrated, files / "other.jsonl", "--keep", "score"
    )
    (tmp_path / "a.txt").write_text("word1\n")
    assert "there is no field 'id'" in refused("score", calibrated, tmp_path / "a.txt", "--keep", "id")


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_tables_keep_columns(apood, calibrated, tmp_path, name):
    if name.endswith("csv"):
        (tmp_path / name).write_text("id,text\nx,word1\ny,word2\n")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"id": ["x", "y"], "text": ["word1", "word2"]}), tmp_path / name)
    result = apood("score", calibrated, tmp_path / name, "--keep", "id")
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == ["x", "y"]
