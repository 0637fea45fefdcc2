"""Output: rows in every format, tables on a terminal, JSON lines in a pipe."""

import csv
import io
import json
import math
import sys

import pytest

from apood.cli.output import check_rows_file, print_facts, print_json, write_rows
from apood.support.errors import InputError

COLUMNS = {"index": [0, 1], "score": [-1.25, -math.inf], "decision": ["ID", "OOD"]}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_json_lines_write_infinity_as_null(tmp_path):
    write_rows(COLUMNS, tmp_path / "rows.jsonl", as_json=False)
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert lines == [
        '{"index": 0, "score": -1.25, "decision": "ID"}',
        '{"index": 1, "score": null, "decision": "OOD"}',
    ]


def test_csv(tmp_path):
    write_rows(COLUMNS, tmp_path / "rows.csv", as_json=False)
    rows = list(csv.DictReader((tmp_path / "rows.csv").open(newline="")))
    assert [(int(r["index"]), float(r["score"]), r["decision"]) for r in rows] == [
        (0, -1.25, "ID"),
        (1, -math.inf, "OOD"),
    ]


def test_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write_rows(COLUMNS, tmp_path / "rows.parquet", as_json=False)
    assert parquet.read_table(tmp_path / "rows.parquet").to_pydict() == COLUMNS


def test_no_temporary_file_is_left(tmp_path):
    for name in ("a.jsonl", "a.csv", "a.parquet"):
        write_rows(COLUMNS, tmp_path / name, as_json=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.jsonl", "a.parquet"]


def test_standard_output_is_a_table_only_on_a_terminal(monkeypatch):
    pipe, terminal, asked = io.StringIO(), Terminal(), Terminal()
    for stream, as_json in ((pipe, False), (terminal, False), (asked, True)):
        monkeypatch.setattr(sys, "stdout", stream)
        write_rows(COLUMNS, None, as_json=as_json)
    assert [json.loads(line)["index"] for line in pipe.getvalue().splitlines()] == [0, 1]
    assert asked.getvalue() == pipe.getvalue()
    assert "decision" in terminal.getvalue() and "-inf" in terminal.getvalue() and "{" not in terminal.getvalue()


@pytest.mark.parametrize("name", ["rows", "rows.txt", "rows.json"])
def test_an_unknown_ending_is_refused(name, tmp_path):
    with pytest.raises(InputError, match=r"use \.jsonl, \.csv, \.parquet"):
        check_rows_file(tmp_path / name, force=True)


def test_printed_json_has_no_infinities(capsys):
    print_json({"a": [math.inf, 1.5], "b": {"c": math.nan}})
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.5], "b": {"c": None}}


def test_facts_are_formatted_for_people(capsys):
    print_facts({"tokens": 12345, "verified": True, "encoder": None, "lengths": {"min": 1.0, "median": 2.5}, "x": {}})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["tokens", "12,345"],
        ["verified", "yes"],
        ["encoder", "–"],
        ["lengths", "min:", "1"],
        ["median:", "2.5"],
        ["x", "–"],
    ]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_score_writes_every_format_into_new_folders(apood, calibrated, stores, tmp_path, ending):
    file = tmp_path / "new" / f"scores.{ending}"
    result = apood("score", calibrated, stores / "other", "--out", file)
    rows = [json.loads(line) for line in apood("score", calibrated, stores / "other").stdout.splitlines()]
    outside = sum(row["decision"] == "OOD" for row in rows)
    assert f"Scored 40 sequences, {outside} of them OOD" in result.stdout
    if ending == "jsonl":
        found = [json.loads(line) for line in file.read_text().splitlines()]
    elif ending == "parquet":
        found = pytest.importorskip("pyarrow.parquet").read_table(file).to_pylist()
    else:
        read = {"index": int, "score": float, "p_value": float, "decision": str}
        table = csv.DictReader(file.open(newline=""))
        found = [{name: read[name](value) for name, value in row.items()} for row in table]
    assert found == rows
