"""Output: rows in every format, tables on a terminal, JSON lines in a pipe."""

import csv
import io
import json
import math
import sys

import pytest
import torch
from typer.testing import CliRunner

from apood.cli.app import app
from apood.cli.output import check_rows_file, echo, print_facts, print_json, write_rows
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch
from apood.tokens.writer import TokenStoreWriter

ROWS = [{"index": 0, "score": -1.25, "decision": "ID"}, {"index": 1, "score": -math.inf, "decision": "OOD"}]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_json_lines_write_infinity_as_null(tmp_path):
    write_rows(ROWS, tmp_path / "rows.jsonl", as_json=False)
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert lines == [
        '{"index": 0, "score": -1.25, "decision": "ID"}',
        '{"index": 1, "score": null, "decision": "OOD"}',
    ]


def test_csv(tmp_path):
    write_rows(ROWS, tmp_path / "rows.csv", as_json=False)
    rows = list(csv.DictReader((tmp_path / "rows.csv").open(newline="")))
    assert [(int(r["index"]), float(r["score"]), r["decision"]) for r in rows] == [
        (0, -1.25, "ID"),
        (1, -math.inf, "OOD"),
    ]


def test_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write_rows(ROWS, tmp_path / "rows.parquet", as_json=False)
    assert parquet.read_table(tmp_path / "rows.parquet").to_pydict() == {
        key: [row[key] for row in ROWS] for key in ROWS[0]
    }


def test_no_temporary_file_is_left(tmp_path):
    for name in ("a.jsonl", "a.csv", "a.parquet"):
        write_rows(ROWS, tmp_path / name, as_json=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.jsonl", "a.parquet"]


def test_standard_output_is_a_table_only_on_a_terminal(monkeypatch):
    pipe, terminal, asked = io.StringIO(), Terminal(), Terminal()
    for stream, as_json in ((pipe, False), (terminal, False), (asked, True)):
        monkeypatch.setattr(sys, "stdout", stream)
        write_rows(ROWS, None, as_json=as_json)
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


HOSTILE = "\x1b]0;title\x07\x9b31m\u202ered\udcff"


def test_control_characters_are_escaped_wherever_they_are_printed(capsys, monkeypatch):
    echo(HOSTILE)
    echo(HOSTILE, err=True)
    print_facts({HOSTILE: {HOSTILE: HOSTILE}})
    print_json({HOSTILE: HOSTILE})
    printed = capsys.readouterr()
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    write_rows([{HOSTILE: HOSTILE}], None, as_json=False)
    for text in (printed.out, printed.err, terminal.getvalue()):
        assert "\\u001b]0;title" in text and not any(hostile in text for hostile in ("\x1b]", "\x07", "\x9b", "\u202e"))


def test_escaped_json_has_the_same_value(capsys):
    print_json({"name": HOSTILE})
    assert json.loads(capsys.readouterr().out) == {"name": HOSTILE}


def test_inspect_prints_no_escapes_of_a_store(apood, tmp_path):
    with TokenStoreWriter(tmp_path / "store", dim=2, encoder={"model": "\x1b[31mred"}) as writer:
        writer.append(TokenBatch.from_sequences([torch.ones(1, 2)]))
    for options in ((), ("--json",)):
        shown = apood("inspect", tmp_path / "store", *options).stdout
        assert "\x1b" not in shown and "\\u001b[31mred" in shown


@pytest.fixture
def break_methods(monkeypatch, tmp_path):
    """A function that makes `apood methods` raise an error, and runs it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("APOOD_DEBUG", raising=False)

    def run(error):
        def fail():
            raise error from KeyError(str(error))

        monkeypatch.setattr("apood.detectors.contract.registry.list_methods", fail)
        return CliRunner().invoke(app, ["methods", "--json"])

    return run


def test_an_unexpected_error_ends_with_a_sentence_and_a_report(break_methods, tmp_path):
    result = break_methods(TypeError("a secret\ntext\x1b"))
    (report,) = tmp_path.iterdir()
    assert result.exit_code == 70 and isinstance(result.exception, SystemExit)
    assert result.stderr == (
        f"An unexpected error occurred: TypeError: a secret text\\u001b. The report is at {report}.\n"
    )
    content = report.read_text()
    assert all(fact in content for fact in ("apood methods --json", "torch: ", "in fail", "TypeError", "KeyError"))
    assert "secret" not in content


def test_a_report_that_cannot_be_written_hides_no_error(break_methods, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    result = break_methods(TypeError("why"))
    assert result.exit_code == 70 and "TypeError: why. A report could not be written" in result.stderr


def test_debugging_raises_unexpected_errors(break_methods, monkeypatch, tmp_path):
    monkeypatch.setenv("APOOD_DEBUG", "1")
    assert isinstance(break_methods(TypeError("why")).exception, TypeError)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory"), torch.OutOfMemoryError()]
)
def test_too_little_memory_is_said_in_a_sentence(break_methods, error):
    result = break_methods(error)
    assert result.exit_code == 2 and result.stderr.startswith("Error: This needs more memory")


def test_an_error_of_the_system_names_the_file(break_methods):
    result = break_methods(OSError(28, "No space left on device", "/disk/file"))
    assert result.stderr == "Error: No space left on device: /disk/file.\n"


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_half_a_surrogate_pair_is_escaped(tmp_path, ending):
    file = tmp_path / f"rows.{ending}"
    write_rows([{"id": "\ud800 x", "more": [{"a": "\udfff"}]}], file, as_json=False)
    assert b"\\ud800 x" in file.read_bytes() and b"\\udfff" in file.read_bytes()


@pytest.mark.parametrize("values", [(1, {"a": 2}), (1 << 63,), ([{}],), ({"a": -(1 << 70)},)])
def test_parquet_of_values_that_it_cannot_hold_is_refused(tmp_path, values):
    pytest.importorskip("pyarrow")
    with pytest.raises(InputError, match=r"must be of one kind.*Write \.jsonl or \.csv"):
        write_rows([{"id": value} for value in values], tmp_path / "rows.parquet", as_json=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_score_writes_every_format_into_new_folders(apood, calibrated, stores, tmp_path, ending):
    file = tmp_path / "new" / f"scores.{ending}"
    result = apood("score", calibrated, stores / "other", "--out", file)
    rows = [json.loads(line) for line in apood("score", calibrated, stores / "other").stdout.splitlines()]
    outside = sum(row["decision"] == "OOD" for row in rows)
    assert f"Scored 40 inputs, {outside} of them OOD" in result.stdout
    if ending == "jsonl":
        found = [json.loads(line) for line in file.read_text().splitlines()]
    elif ending == "parquet":
        found = pytest.importorskip("pyarrow.parquet").read_table(file).to_pylist()
    else:
        read = {"index": int, "score": float, "p_value": float, "decision": str, "tokens": int, "windows": int}
        read |= dict.fromkeys(["truncated", "note"], lambda value: value or None)
        table = csv.DictReader(file.open(newline=""))
        found = [{name: read[name](value) for name, value in row.items()} for row in table]
    assert found == rows
