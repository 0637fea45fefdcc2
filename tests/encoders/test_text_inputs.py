"""Every format that texts are read from, and the place that is named when one cannot be read."""

import gzip
import io
import itertools
import json
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from apood.encoders.inputs import read_texts
from apood.support.errors import InputError

TEXTS = ["one", "", 'two, with "quotes"', "drei\tüber 日本 🙂", "  spaces  "]


def write(path: Path, content: str | bytes) -> str:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def json_lines(texts: list[str], field: str = "text") -> str:
    return "".join(json.dumps({"id": i, field: text}) + "\n" for i, text in enumerate(texts))


def separated(texts: list[str], delimiter: str) -> str:
    rows = [f'{i}{delimiter}"{text.replace(chr(34), chr(34) * 2)}"' for i, text in enumerate(texts)]
    return "\n".join([f"id{delimiter}text", *rows]) + "\n"


def refused(*inputs: str, field: str = "text") -> str:
    with pytest.raises(InputError) as error:
        list(read_texts(inputs, field))
    return str(error.value)


@pytest.mark.parametrize("ending", ["jsonl", "ndjson", "json", "JSONL", "jsonl.gz", "json.gz"])
def test_json_lines(tmp_path: Path, ending: str) -> None:
    assert list(read_texts([write(tmp_path / f"a.{ending}", json_lines(TEXTS))])) == TEXTS
    assert list(read_texts([write(tmp_path / f"b.{ending}", json_lines(TEXTS, "body"))], "body")) == TEXTS


@pytest.mark.parametrize(("ending", "delimiter"), [("csv", ","), ("tsv", "\t"), ("csv.gz", ",")])
def test_csv_and_tsv(tmp_path: Path, ending: str, delimiter: str) -> None:
    texts = [*TEXTS, "two\nlines", "long " * 50_000]
    assert list(read_texts([write(tmp_path / f"a.{ending}", separated(texts, delimiter))])) == texts


@pytest.mark.parametrize("ending", ["txt", "txt.gz"])
def test_plain_text_has_a_text_a_line(tmp_path: Path, ending: str) -> None:
    separators = "a\u2028b\x0cc"  # line ends for str.splitlines, not for a text file
    content = "\r\n".join([*TEXTS, separators])
    assert list(read_texts([write(tmp_path / f"a.{ending}", content)])) == [*TEXTS, separators]


@pytest.mark.parametrize("kind", [pyarrow.string(), pyarrow.large_string()])
def test_parquet(tmp_path: Path, kind: pyarrow.DataType) -> None:
    texts = TEXTS * 500
    table = pyarrow.table({"id": range(len(texts)), "text": pyarrow.array(texts, kind)})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=300)
    assert list(read_texts([str(tmp_path / "a.parquet")])) == texts


def test_several_inputs_are_read_one_after_the_other_and_lazily(tmp_path: Path) -> None:
    good = write(tmp_path / "a.jsonl", json_lines(["a", "b"]))
    bad = write(tmp_path / "b.jsonl", '{"text": "c"}\nnonsense\n')
    assert list(itertools.islice(read_texts([good, good, bad]), 5)) == ["a", "b", "a", "b", "c"]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv", "txt", "txt.gz"])
def test_empty_files_hold_no_texts(tmp_path: Path, ending: str) -> None:
    assert list(read_texts([write(tmp_path / f"a.{ending}", "")])) == []


def test_byte_order_marks_and_blank_lines_are_no_texts(tmp_path: Path) -> None:
    marked = "\ufeff".encode()
    assert list(read_texts([write(tmp_path / "a.jsonl", marked + b'{"text": "x"}\n\n  \n{"text": "y"}')])) == ["x", "y"]
    assert list(read_texts([write(tmp_path / "a.csv", marked + b"text\nx\n\ny\n")])) == ["x", "y"]
    assert list(read_texts([write(tmp_path / "a.txt", marked + b"x\n")])) == ["x"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (json_lines(TEXTS), TEXTS),
        ("\n" + json_lines(TEXTS), TEXTS),
        ("one\n\n{two\n", ["one", "", "{two"]),
        ('{ not an object\n{"text": "x"}', ["{ not an object", '{"text": "x"}']),
        ("", []),
        ("\n", [""]),
    ],
)
def test_standard_input(monkeypatch: pytest.MonkeyPatch, content: str, expected: list[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    assert list(read_texts(["-"])) == expected


def test_broken_json_on_standard_input_is_not_taken_for_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "x",}\n')))
    assert "Line 1 of 'standard input' is not valid JSON" in refused("-")


def test_what_is_not_there_is_refused_before_the_first_text(tmp_path: Path) -> None:
    good = write(tmp_path / "a.jsonl", json_lines(TEXTS))
    unknown = write(tmp_path / "a.docx", "")
    for inputs, message in [
        ([good, str(tmp_path / "none.jsonl")], "There is no file"),
        ([good, str(tmp_path)], "is a folder"),
        ([good, unknown], "allowed are .jsonl, .ndjson, .json, .csv, .tsv, .txt (each also with .gz) and .parquet"),
        ([write(tmp_path / "a.gz", "")], "allowed are"),
        ([], "nothing to read"),
        (["-", "-"], "only once"),
    ]:
        with pytest.raises(InputError) as error:
            read_texts(inputs)
        assert message in str(error.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "x"', "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"body": "x", "id": 1}', "has no field 'text': there are 'body', 'id'"),
        ("{}", "has no field 'text': there are none"),
        ('["x"]', "must be a JSON object, got a list"),
        ('"x"', "must be a JSON object, got a string"),
        ('{"text": null}', "must be a string, got null"),
        ('{"text": 3.5}', "must be a string, got a number"),
        ('{"text": true}', "must be a string, got a boolean"),
        ('{"text": ["x"]}', "must be a string, got a list"),
    ],
)
def test_bad_json_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "fine"}\n\n' + line + "\n")
    found = refused(path)
    assert message in found
    assert "ine 3 of" in found
    assert path in found


def test_bad_rows_are_named(tmp_path: Path) -> None:
    assert "has no field 'text': there are 'id', 'body'" in refused(write(tmp_path / "a.csv", "id,body\n1,x\n"))
    ragged = refused(write(tmp_path / "b.csv", "id,text\n1,x\n2,one, two\n"))
    assert "line 3 of" in ragged
    assert "has 3 cells, but the header has 2" in ragged
    assert "not valid CSV" in refused(write(tmp_path / "c.csv", 'id,text\n1,"never closed\n2,x\n'))


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    found = refused(write(tmp_path / "a.txt", b"fine\ncaf\xe9\n"))
    assert "is not UTF-8: byte 8 (line 2)" in found
    assert "byte 14 (line 2)" in refused(write(tmp_path / "a.jsonl", b'{"text": ""}\n{\xff"text": ""}\n'))
    assert "is not UTF-8" in refused(write(tmp_path / "a.csv", "text\nx\n".encode("utf-16")))


def test_bad_archives_and_parquet_files_are_named(tmp_path: Path) -> None:
    whole = gzip.compress(json_lines(TEXTS * 100).encode())
    for name, content in [("a.jsonl.gz", b"not gzip"), ("b.jsonl.gz", whole[: len(whole) // 2])]:
        (tmp_path / name).write_bytes(content)
        assert f"{name}' cannot be read" in refused(str(tmp_path / name))
    assert "cannot be read as Parquet" in refused(write(tmp_path / "a.parquet", b"PAR1nonsense"))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x", None], "n": [1, 2]}), tmp_path / "b.parquet")
    path = str(tmp_path / "b.parquet")
    assert "in row 2 of" in refused(path)
    assert "got null" in refused(path)
    assert "got a number" in refused(path, field="n")
    assert "has no field 'body': there are 'text', 'n'" in refused(path, field="body")


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'apood[hf]'" in refused(write(tmp_path / "a.parquet", b""))
