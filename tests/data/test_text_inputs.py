"""Reading texts in every format, and naming the place of those that cannot be read."""

import csv
import gzip
import io
import itertools
import json
import os
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apood.data import text_files
from apood.data.inputs import read_records, shuffle_records
from apood.data.record import BadRecord, Pair, Record
from apood.support.errors import InputError

TEXTS = ["one", 'two, with "quotes"', "drei\tüber 日本 🙂", "  spaces  "]
# what UTF-8 can hold, and is not only white space
A_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
A_LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\ufeff"), min_size=1).filter(
    str.strip
)


def write(path: Path, content: str | bytes) -> str:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def write_parquet(path: Path, rows: list[dict[str, Any]], **options: Any) -> str:
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, **options)
    return str(path)


def json_lines(texts: list[str], field: str = "text") -> str:
    return "".join(json.dumps({"id": i, field: text}) + "\n" for i, text in enumerate(texts))


def separated(texts: list[str], delimiter: str) -> str:
    rows = [f'{i}{delimiter}"{text.replace(chr(34), chr(34) * 2)}"' for i, text in enumerate(texts)]
    return "\n".join([f"id{delimiter}text", *rows]) + "\n"


def items(*inputs: str, **options: Any) -> list[Any]:
    """Return the items of the inputs, whose records must all be good."""
    records = list(read_records(inputs, **options))
    assert not [record for record in records if isinstance(record, BadRecord)]
    return [record.item for record in records if isinstance(record, Record)]


def mixed(*inputs: str, **options: Any) -> list[Any]:
    """Return the items of good records and the reasons of bad ones, which must name the place."""
    found = []
    for record in read_records(inputs, **options):
        if isinstance(record, BadRecord):
            assert record.place in record.reason[:1].lower() + record.reason[1:]
            assert record.reason.endswith(".")
        found.append(record.reason if isinstance(record, BadRecord) else record.item)
    return found


def refused(*inputs: str, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        list(read_records(inputs, **options))
    return str(error.value)


# ----------------------------------------------------------------------------------------------------------- formats


def test_json_lines(tmp_path: Path) -> None:
    for ending in ("jsonl", "ndjson", "json", "JSONL", "jsonl.gz"):
        assert items(write(tmp_path / f"a.{ending}", json_lines(TEXTS, "body")), field="body") == TEXTS


@pytest.mark.parametrize(("ending", "delimiter"), [("csv.gz", ","), ("tsv", "\t")])
def test_csv_and_tsv(tmp_path: Path, ending: str, delimiter: str) -> None:
    texts = [*TEXTS, "two\nlines", "long " * 50_000]
    assert items(write(tmp_path / f"a.{ending}", separated(texts, delimiter))) == texts


def test_plain_text_has_one_text_per_line(tmp_path: Path) -> None:
    separators = "a\u2028b\x0cc"  # line ends for str.splitlines, not for a text file
    assert items(write(tmp_path / "a.txt", "\r\n".join([*TEXTS, separators]))) == [*TEXTS, separators]


def test_segments_of_a_wmt_test_set(tmp_path: Path) -> None:
    content = (
        '<srcset setid="x" srclang="any">\n<doc docid="1">\n<p>\n<seg id="1">Tom &amp; Jerry </seg>\n'
        '<seg id="2"></seg>\n</p>\n</doc>\n<doc>\n<SEG id="1">again</SEG>\n<seg id="2">open\n</srcset>\n'
    )
    first, empty, again, unended = mixed(write(tmp_path / "a.sgm", content))
    assert (first, again) == ("Tom & Jerry", "again")
    assert "ine 5 of" in empty and "is empty" in empty
    assert "ine 10 of" in unended and "does not end" in unended


def test_parquet(tmp_path: Path) -> None:
    texts = TEXTS * 500
    rows = [{"id": number, "text": text} for number, text in enumerate(texts)]
    assert items(write_parquet(tmp_path / "a.parquet", rows, row_group_size=300)) == texts


def test_dots_lead_into_objects(tmp_path: Path) -> None:
    rows = [{"translation": {"en": f"en{i}", "fr": f"fr{i}"}, "a.b": str(i)} for i in range(3)]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    table = write_parquet(tmp_path / "a.parquet", rows)
    for given_path in (path, table):
        assert items(given_path, field="translation.fr") == ["fr0", "fr1", "fr2"]
        assert items(given_path, field="a.b") == ["0", "1", "2"]
        pairs = items(given_path, field="translation.en", target_field="translation.fr")
        assert pairs == [Pair(f"en{i}", f"fr{i}") for i in range(3)]
    there = "there are 'translation.en', 'translation.fr', 'a.b'"
    assert there in mixed(path, field="translation.de")[0]
    assert there in refused(table, field="translation.de")


def test_pairs(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "en,id,fr\nyes,1,oui\nno,2,\n")
    good, bad = mixed(path, field="en", target_field="fr")
    assert good == Pair("yes", "oui")
    assert bad == f"Field 'fr' in line 3 of {path!r} is empty."
    assert items(path, field="en") == ["yes", "no"]
    assert "does not say where its targets are" in refused(path, field="en", pairs=True)
    assert "no field 'fr'" in refused(write(tmp_path / "a.txt", "x\n"), target_field="fr")


def test_several_inputs_are_read_one_after_the_other_and_lazily(tmp_path: Path) -> None:
    good = write(tmp_path / "a.jsonl", json_lines(["a", "b"]))
    bad = write(tmp_path / "b.csv", "no such field\n")
    first = [record.item for record in itertools.islice(read_records([good, good, bad]), 4)]
    assert first == ["a", "b", "a", "b"]


def test_empty_files_hold_no_texts(tmp_path: Path) -> None:
    for ending in ("jsonl", "csv", "txt.gz", "sgm"):
        assert items(write(tmp_path / f"a.{ending}", "")) == []


def test_byte_order_marks_and_blank_lines_are_no_texts(tmp_path: Path) -> None:
    marked = "\ufeff".encode()
    assert items(write(tmp_path / "a.jsonl", marked + b'{"text": "x"}\n\n  \n{"text": "y"}')) == ["x", "y"]
    assert items(write(tmp_path / "a.csv", marked + b"text\nx\n\ny\n")) == ["x", "y"]
    assert items(write(tmp_path / "a.txt", marked + b"x\n")) == ["x"]


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
    assert items("-", allow_empty=True) == expected


def test_broken_json_on_standard_input_is_not_taken_for_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "x",}\n')))
    assert "Line 1 of standard input is not valid JSON" in mixed("-")[0]


@given(
    texts=st.lists(A_TEXT), field=st.text(st.characters(exclude_categories=["Cs"]), min_size=1), escaped=st.booleans()
)
def test_json_lines_bring_back_what_was_written(texts: list[str], field: str, escaped: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lines = [json.dumps({field: text}, ensure_ascii=escaped) + "\n" for text in texts]
        path = write(Path(folder) / "a.jsonl", "".join(lines))
        records = list(read_records([path], field=field))
    assert records == [Record(text, f"line {i} of {path!r}") for i, text in enumerate(texts, start=1)]


@given(rows=st.lists(st.tuples(A_TEXT, A_TEXT)), delimiter=st.sampled_from([",", "\t"]))
def test_csv_brings_back_what_was_written(rows: list[tuple[str, str]], delimiter: str) -> None:
    # the rules of CSV leave open what a bare carriage return or NUL is
    rows = [tuple(cell.replace("\r", "r").replace("\0", "0") for cell in row) for row in rows]
    written = io.StringIO()
    csv.writer(written, delimiter=delimiter, lineterminator="\n").writerows([("a", "b"), *rows])
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / f"a.{'csv' if delimiter == ',' else 'tsv'}", written.getvalue())
        assert items(path, field="b", target_field="a") == [Pair(b, a) for a, b in rows]


# ----------------------------------------------------------------------------------------------------- parallel text


def test_parallel_text(tmp_path: Path) -> None:
    write(tmp_path / "x.en-fr.en", "yes\nno\n")
    write(tmp_path / "x.en-fr.fr.gz", "oui\r\nnon")
    source = f"moses:{tmp_path}/x.en-fr:en-fr"
    assert items(source) == ["yes", "no"]
    assert items(source, field="fr") == ["oui", "non"]
    assert items(source, pairs=True) == [("yes", "oui"), ("no", "non")]
    assert items(source, field="fr", pairs=True) == items(source, field="fr", target_field="en") == [
        ("oui", "yes"), ("non", "no")
    ]  # fmt: skip
    assert "have no field 'de': there are 'en' and 'fr'" in refused(source, field="de")


@given(pairs=st.lists(st.tuples(A_LINE, A_LINE), min_size=1))
def test_parallel_text_brings_back_what_was_written(pairs: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for language, lines in zip(("en", "fr"), zip(*pairs, strict=True), strict=True):
            write(Path(folder) / f"x.{language}", "".join(line + "\n" for line in lines))
        assert items(f"moses:{folder}/x:en-fr", pairs=True) == pairs


def test_bad_lines_of_parallel_text_are_named(tmp_path: Path) -> None:
    write(tmp_path / "x.en", b"one\ntwo\n\nfour\n")
    write(tmp_path / "x.fr", b"un\n\xff\ntrois\n \n")
    good, undecodable, no_source, no_target = mixed(f"moses:{tmp_path}/x:en-fr", pairs=True)
    assert good == ("one", "un")
    assert "Line 2 of" in undecodable and "x.fr' is not UTF-8: byte 1" in undecodable
    assert "Field 'en' in line 3 of" in no_source and "is empty" in no_source
    assert "Field 'fr' in line 4 of" in no_target and "white space" in no_target
    assert mixed(f"moses:{tmp_path}/x:en-fr", field="fr")[2] == "trois"


def test_parallel_text_of_unequal_length_is_refused_before_any_pair(tmp_path: Path) -> None:
    write(tmp_path / "x.en", "one\ntwo\n")
    write(tmp_path / "x.fr", "un\n")
    with pytest.raises(InputError, match=r"2 lines .* has 1"):
        next(read_records([f"moses:{tmp_path}/x:en-fr"], pairs=True))
    assert "x.de.gz'" in refused(f"moses:{tmp_path}/x:en-de")
    for form in ("moses:x", "moses:x:en", "moses::en-fr", "moses:x:en-fr-de", "moses:x:en-en", "moses:x:-fr"):
        assert "moses:PREFIX:SOURCE-TARGET" in refused(form)


# ------------------------------------------------------------------------------------------------- patterns and order


def test_patterns_match_files_in_sorted_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.txt", "a.txt", "c.jsonl", "deep/er/d.txt", ".hidden.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name, f"{name}\n")
    (tmp_path / "folder.txt").mkdir()
    assert items(f"{tmp_path}/*.txt") == ["a.txt", "b.txt"]
    assert items(f"{tmp_path}/[!b]*.txt") == ["a.txt"]
    monkeypatch.chdir(tmp_path)
    assert items("**/*.txt") == ["a.txt", "b.txt", "deep/er/d.txt"]
    (tmp_path / "deep" / "up").symlink_to("..")
    (tmp_path / "deep" / "other").symlink_to("er")
    assert items("**/*.txt") == ["a.txt", "b.txt", "deep/er/d.txt", "deep/er/d.txt"]
    assert items("deep/up/a.txt", "deep/up/?.txt") == ["a.txt", "a.txt", "b.txt"]
    assert items("deep/up/**/*.txt") == ["a.txt", "b.txt", "deep/er/d.txt", "deep/er/d.txt"]
    assert items("*/**/*.txt") == ["deep/er/d.txt", "deep/er/d.txt"], "no wildcard goes round through deep/up"
    assert items("?.txt", "a.txt") == ["a.txt", "b.txt", "a.txt"]
    assert refused("*.csv") == "No file matches '*.csv'."
    write(tmp_path / "odd[1].txt", "itself\n")
    assert items("odd[1].txt") == ["itself"]


def test_shuffling_depends_on_the_seed_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "".join(f"{i}\n" for i in range(50)) + "\n")
    records = list(read_records([path]))
    once, again, other = (list(shuffle_records(iter(records), seed)) for seed in (1, 1, 2))
    assert once == again != other
    assert once != records and sorted(once, key=records.index) == records
    assert sum(isinstance(record, BadRecord) for record in once) == 1


def test_each_file_of_a_folder_is_one_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes" / "old").mkdir(parents=True)
    for name, content in (("b.txt", "one\ntwo\n"), ("old/a.md", "\ufeff three \n"), ("c.html", "<p>"), (".d.txt", "x")):
        write(tmp_path / "notes" / name, content)
    folder = f"files:{tmp_path / 'notes'}"
    assert items(folder) == ["one\ntwo", "three"]
    assert items(f"{folder}/*.html") == ["<p>"] and items(f"{folder}/b.txt") == ["one\ntwo"]
    write(tmp_path / "notes" / "empty.txt", " \n")
    (tmp_path / "notes" / "latin.txt").write_bytes(b"na\xefve")
    (tmp_path / "notes" / "large.txt").write_bytes(b"x" * 100)
    monkeypatch.setattr("apood.data.inputs.MOST_BYTES", 50)
    one, empty, large, latin, three = mixed(folder)
    assert (one, three) == ("one\ntwo", "three")
    assert "empty.txt' is empty" in empty and "large.txt' is larger than" in large
    assert "latin.txt' is not UTF-8: byte 3" in latin
    for inputs, options, message in (
        (f"files:{tmp_path}/none", {}, "files that end in .txt or .md are read"),
        (folder, {"field": "body"}, "there are no fields"),
    ):
        with pytest.raises(InputError, match=message):
            list(read_records([inputs], **options))


# ---------------------------------------------------------------------------------------------------------- bad input


def test_missing_inputs_are_refused_before_the_first_text(tmp_path: Path) -> None:
    good = write(tmp_path / "a.jsonl", json_lines(TEXTS))
    unknown = write(tmp_path / "a.docx", "")
    for inputs, message in [
        ([good, str(tmp_path / "none.jsonl")], "There is no file"),
        (
            [good, str(tmp_path)],
            f"is a folder: give its files, for example '{tmp_path}/*.jsonl', or 'files:{tmp_path}'",
        ),
        (
            [good, unknown],
            "allowed are .jsonl, .ndjson, .json, .csv, .tsv, .txt, .sgm (each also with .gz) and .parquet",
        ),
        ([write(tmp_path / "a.gz", "")], "allowed are"),
        ([good, str(tmp_path / "*.tsv")], "No file matches"),
        ([], "nothing to read"),
        (["-", "-"], "only once"),
    ]:
        with pytest.raises(InputError) as error:
            read_records(inputs)
        assert message in str(error.value)


def test_bad_lines_are_named_and_reading_goes_on(tmp_path: Path) -> None:
    bad = {
        b'{"text": "x"': "is not valid JSON",
        b"[" * 100_000: "is not valid JSON",
        b'{"text": ' + b"9" * 5000 + b"}": "is not valid JSON",
        b'{"body": "x", "id": 1}': "has no field 'text': there are 'body', 'id'",
        b"{}": "has no field 'text': there are none",
        b'["x"]': "must be a JSON object, got a list",
        b'"x"': "must be a JSON object, got a string",
        b'{"text": null}': "must be a string, got null",
        b'{"text": 3.5}': "must be a string, got a number",
        b'{"text": true}': "must be a string, got a boolean",
        b'{"text": ["x"]}': "must be a string, got a list",
        b'{"text": ""}': "is empty",
        b'{"text": " \\t\\n\\u00a0"}': "is empty except for white space",
        b'{"text": "x\\ud83d"}': "has half of a surrogate pair",
        b'{"text": "caf\xe9"}': "is not UTF-8: byte 14 of the line",
    }
    path = write(tmp_path / "a.jsonl", b'{"text": "fine"}\n\n' + b"\n".join(bad) + b'\n{"text": "behind"}\n')
    before, *found, behind = mixed(path)
    assert (before, behind) == ("fine", "behind")
    for number, (reason, message) in enumerate(zip(found, bad.values(), strict=True), start=3):
        assert message in reason and f"ine {number} of {path!r}" in reason


def test_many_fields_are_not_all_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", json.dumps({f"f{i}": i for i in range(50)}) + "\n")
    assert mixed(path)[0].endswith("'f19' and 30 more.")


def test_empty_texts_are_records_if_they_are_allowed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\n\n \n")
    assert items(path, allow_empty=True) == ["one", "", " "]
    assert [isinstance(record, BadRecord) for record in read_records([path])] == [False, True, True]
    broken = write(tmp_path / "a.jsonl", '{"text": ""}\n{"text": 1}\n')
    assert [isinstance(r, BadRecord) for r in read_records([broken], allow_empty=True)] == [False, True]


def test_bad_csv_rows_are_named_and_reading_goes_on(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.csv",
        b'id,text\n1,"two\nlines"\n2,one, two\n3,"quoted"badly\n4,caf\xe9\n5,\n6,good\n7,"open\n8,x\n',
    )
    first, ragged, quoted, undecodable, empty, good, unclosed = mixed(path)
    assert (first, good) == ("two\nlines", "good")
    assert "ine 4 of" in ragged and "has 3 cells, but the header has 2" in ragged
    assert "ine 5 of" in quoted and "is not valid CSV" in quoted
    assert "ine 6 of" in undecodable and "byte 6 of the line" in undecodable
    assert "Field 'text' in line 7 of" in empty
    assert "ine 9 of" in unclosed and "is not valid CSV" in unclosed


def test_a_table_without_a_good_header_is_refused(tmp_path: Path) -> None:
    assert "has no field 'text': there are 'id', 'body'" in refused(write(tmp_path / "a.csv", "id,body\n1,x\n"))
    assert "no field 'fr'" in refused(write(tmp_path / "b.csv", "text,body\n1,x\n"), target_field="fr")
    assert "is not UTF-8" in refused(write(tmp_path / "c.csv", "text\nx\n".encode("utf-16")))
    assert "Line 1 of" in refused(write(tmp_path / "d.csv", 'id,"te"xt\n1,x\n'))


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl", "a.sgm", "a.csv"])
def test_a_line_above_the_limit_is_refused_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("apood.data.text_files.MOST_BYTES", 1 << 20)
    before, good = {
        "a.jsonl": ("", '{"text": "good"}'),
        "a.sgm": ("", "<seg>good</seg>"),
        "a.csv": ("text\n", "good"),
    }.get(name, ("", "good"))
    path = write(tmp_path / name, f"{before}{good}\n{'x' * (40 << 20)}\n{good}\n")
    tracemalloc.start()
    try:
        first, bad, last = mixed(path)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
    assert first == last == "good"
    assert "limit for one record" in bad and "split it" in bad


def test_a_csv_row_above_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apood.data.text_files.MOST_BYTES", 1000)
    open_quote = '"never closed\n' + "line\n" * 300
    reasons = mixed(write(tmp_path / "a.csv", f"text\ngood\n{open_quote}"))
    assert reasons[0] == "good" and "Line 3 of" in reasons[1] and "limit for one record" in reasons[1]


@pytest.mark.parametrize("piece", ["<seg", "<seg>", "<seg <", "</seg", "<seg></se"])
def test_segments_that_do_not_end_take_linear_time(tmp_path: Path, piece: str) -> None:
    """A pattern that tries every start needed more than a minute for a tenth of this."""
    started = time.perf_counter()
    found = mixed(write(tmp_path / "a.sgm", piece * 400_000))
    assert time.perf_counter() - started < 5
    assert all("does not end on its line" in reason for reason in found) and len(found) == ("<seg" in piece)


def test_a_character_reference_of_thousands_of_digits_is_refused(tmp_path: Path) -> None:
    bad, good = mixed(write(tmp_path / "a.sgm", f"<seg>&#{'9' * 5000};</seg>\n<seg>fine</seg>\n"))
    assert "thousands of digits" in bad and good == "fine"


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt.gz", "a.parquet"])
def test_only_regular_files_are_read(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    message = refused(str(tmp_path / name))
    assert "only regular files are read" in message and "standard input" in message
    assert "only regular files" in refused("/dev/zero")


def test_bytes_that_are_not_utf8_spoil_only_their_line(tmp_path: Path) -> None:
    first, bad, last = mixed(write(tmp_path / "a.txt", b"fine\ncaf\xe9\nbehind\n"))
    assert (first, last) == ("fine", "behind")
    assert "Line 2 of" in bad and "is not UTF-8: byte 4 of the line" in bad


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf16_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    content = ("\ufeff" * (encoding != "utf-16") + "one\ntwo\n").encode(encoding)
    for name in ("a.txt", "a.jsonl", "a.txt.gz"):
        assert "is not UTF-8, but UTF-16: write it in UTF-8." in refused(write(tmp_path / name, content))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert refused("-") == "Standard input is not UTF-8, but UTF-16: write it in UTF-8."


def test_bad_archives_and_parquet_files_are_refused(tmp_path: Path) -> None:
    whole = gzip.compress(json_lines(TEXTS * 100).encode())
    for name, content in [("a.jsonl.gz", b"not gzip"), ("b.jsonl.gz", whole[: len(whole) // 2])]:
        (tmp_path / name).write_bytes(content)
        assert f"{name}' cannot be read" in refused(str(tmp_path / name))
    assert "cannot be read as Parquet" in refused(write(tmp_path / "a.parquet", b"PAR1nonsense"))
    path = write_parquet(tmp_path / "b.parquet", [{"text": "x", "n": 1}, {"text": None, "n": 2}])
    good, bad = mixed(path)
    assert good == "x"
    assert bad == f"Field 'text' in row 2 of {path!r} must be a string, got null."
    assert "got a number" in mixed(path, field="n")[0]
    assert "has no field 'body': there are 'text', 'n'" in refused(path, field="body")


@pytest.fixture
def small_rows(monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the largest size of a record, which is small here."""
    monkeypatch.setattr(text_files, "MOST_BYTES", 1 << 20)
    return 1 << 20


@pytest.mark.parametrize("nested", [False, True])
def test_a_value_that_parquet_names_often_does_not_fill_memory(tmp_path: Path, nested: bool) -> None:
    """A thousand of these rows would take 20 GB; the file takes a few kB."""
    import pyarrow
    import pyarrow.parquet

    values = pyarrow.array(["a" * (20 << 20), "b"])
    text = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 5000 + [1], pyarrow.int32()), values)
    column = pyarrow.StructArray.from_arrays([text], ["inner"]) if nested else text
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"text": column}), path, compression="zstd", dictionary_pagesize_limit=1 << 30
    )
    assert path.stat().st_size < 10_000
    records = read_records([str(path)], field="text.inner" if nested else "text")
    assert [len(record.item) for record in itertools.islice(records, 3)] == [20 << 20] * 3
    assert pyarrow.default_memory_pool().max_memory() < 2 << 30


def test_large_values_in_parquet_are_refused(tmp_path: Path, small_rows: int) -> None:
    rows = [{"text": "a" * size} for size in (5, small_rows + 1, 6)]
    good, bad, last = mixed(write_parquet(tmp_path / "a.parquet", rows))
    assert (good, last) == ("a" * 5, "a" * 6)
    assert bad == f"Row 2 of {str(tmp_path / 'a.parquet')!r} has more than 1 MiB, the limit for one record: split it."
    large = write_parquet(tmp_path / "b.parquet", [{"text": "a" * (3 * small_rows)}], use_dictionary=False)
    assert "have on average more than 1 MiB, the limit" in refused(large)


def test_a_parquet_page_that_unpacks_to_far_more_is_refused(tmp_path: Path) -> None:
    rows = [{"text": "a" * (10 << 20)}] * 30
    path = write_parquet(tmp_path / "a.parquet", rows, compression="zstd", use_dictionary=False)
    assert "more than 100 times as much is not read" in refused(path)


def test_lists_in_parquet_are_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"text": ["a", "b"], "more": {"inner": ["a"], "text": "b"}}])
    assert "The column 'text' of" in refused(path) and "holds list" in refused(path)
    assert "The column 'more.inner' of" in refused(path, field="more")
    assert items(path, field="more.text") == ["b"]


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'apood[hf]'" in refused(write(tmp_path / "a.parquet", b""))


def test_a_kept_field_that_is_nested_too_deeply_is_a_bad_record(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    nested = [f'{{"text": "one", "id": {"[" * levels}{"]" * levels}}}' for levels in (100, 101, 900)]
    path.write_text("\n".join(nested))
    good, *bad = read_records([str(path)], keep=["id"])
    assert isinstance(good, Record)
    assert [record.reason for record in bad if isinstance(record, BadRecord)] == [
        f"Field 'id' in line {number} of {str(path)!r} has more than 100 levels, and cannot be kept."
        for number in (2, 3)
    ]
    assert items(str(path)) == ["one"] * 3


def test_an_array_of_objects_or_texts_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('\n [{"text": "one", "id": 1},\n{"text": "two", "id": 2}]\n')
    found = list(read_records([str(path)], keep=["id"]))
    assert [(r.item, dict(r.kept)) for r in found if isinstance(r, Record)] == [("one", {"id": 1}), ("two", {"id": 2})]
    path.write_text('["one", 2, ""]')
    first, *bad = read_records([str(path)])
    assert isinstance(first, Record) and first.item == "one" and first.place == f"item 1 of {str(path)!r}"
    assert [type(record) for record in bad] == [BadRecord, BadRecord]
    path.write_text('[{"text": "one"}')
    with pytest.raises(InputError, match="is not valid JSON"):
        list(read_records([str(path)]))
    path.write_text(json.dumps({"data": [{"text": "one"}]}, indent=2))
    with pytest.raises(InputError, match="begins with an object of several lines: give one array"):
        list(read_records([str(path)]))
    path.write_text('{"text": "one"}\n{"text": "two"}\n')  # JSON lines under another name
    assert len(list(read_records([str(path)]))) == 2


def test_semicolons_divide_a_table_if_the_header_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id;text\n1;"one; two, three"\n')
    assert [r.item for r in read_records([str(path)]) if isinstance(r, Record)] == ["one; two, three"]
    path.write_text("text,note\none; two,three\n")
    assert [r.item for r in read_records([str(path)]) if isinstance(r, Record)] == ["one; two"]


def test_a_table_with_two_columns_of_the_name_is_refused(tmp_path: Path) -> None:
    import pyarrow.parquet

    table = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    for name in (write(tmp_path / "a.csv", "text,text\na,b\n"), str(tmp_path / "a.parquet")):
        with pytest.raises(InputError, match="has 2 columns 'text': rename all but one"):
            list(read_records([name]))
    assert items(write(tmp_path / "b.csv", "label,text,label\n1,a,2\n")) == ["a"]


def test_an_empty_parquet_file_holds_no_texts(tmp_path: Path) -> None:
    import pyarrow.parquet

    table = pyarrow.table({"text": pyarrow.array([], pyarrow.string())})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert items(str(tmp_path / "a.parquet")) == []
    with pyarrow.parquet.ParquetWriter(tmp_path / "b.parquet", table.schema) as writer:
        for rows in (table, pyarrow.table({"text": ["one"]})):
            writer.write_table(rows)
    assert items(str(tmp_path / "b.parquet")) == ["one"]
