"""Files that cannot be read: damage in the middle of one costs its rest, and anything else ends the command."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from scaled import plan_scores, run_here

from apood.data.inputs import Request
from apood.data.parts import find_parts
from apood.data.record import Record
from apood.scale.scoring import ScoreWorker
from apood.scale.units import Damage, read_safely
from apood.support.errors import DataWarning, InputError

LINES = b"".join(b'{"text": "word1 %d", "id": 1}\n' % number for number in range(5000))


def write_parquet(path: Path, field: str = "text") -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({field: [f"text {number}" for number in range(5000)]})
    pyarrow.parquet.write_table(table, path, row_group_size=1000)


def write_damaged_gzip(path: Path) -> None:
    content = gzip.compress(LINES)
    path.write_bytes(content[: len(content) // 2])


def write_damaged_parquet(path: Path) -> None:
    write_parquet(path)
    content = bytearray(path.read_bytes())
    for place in range(len(content) // 4, len(content) // 2):
        content[place] ^= 0x5A
    path.write_bytes(content)


@pytest.mark.parametrize(("name", "write"), [("a.jsonl.gz", write_damaged_gzip), ("a.parquet", write_damaged_parquet)])
def test_a_file_ends_where_it_is_damaged(tmp_path: Path, name: str, write: Callable[[Path], None]):
    write(tmp_path / name)
    (part,) = find_parts([str(tmp_path / name)], 1 << 22)
    *good, damage = read_safely(part, Request())
    assert 0 < len(good) < 5000 and all(isinstance(record, Record) for record in good)
    assert isinstance(damage, Damage) and damage.place == str(tmp_path / name) and "cannot be read" in damage.reason


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("a.parquet", lambda path: write_parquet(path, "body"), "has no field 'text'"),
        ("a.csv", lambda path: path.write_text("body\nword1\n"), "has no field 'text'"),
        ("a.txt", lambda path: path.write_text("word1\n", encoding="utf-16"), "is not UTF-8, but UTF-16"),
        ("a.csv.gz", lambda path: path.write_bytes(gzip.compress(b"body\nword1\n")), "has no field 'text'"),
        ("a.jsonl.gz", lambda path: path.write_bytes(LINES), "Not a gzipped file"),
        ("a.jsonl.gz", lambda path: path.write_bytes(gzip.compress(LINES)[:12] + b"\xff\xff\xff"), "cannot be read"),
    ],
)
def test_a_file_that_was_not_meant_is_an_error_and_not_a_row(
    tmp_path: Path, name: str, write: Callable[[Path], None], message: str
):
    """A row with the error would stand for a whole file, among millions of others."""
    write(tmp_path / name)
    (part,) = find_parts([str(tmp_path / name)], 1 << 22)
    with pytest.raises(InputError, match=message):
        list(read_safely(part, Request()))


def test_an_array_that_is_not_json_is_an_error(tmp_path: Path):
    (tmp_path / "a.json").write_text('[{"text": "word1"}')
    (part,) = find_parts([str(tmp_path / "a.json")], 1 << 22)
    with pytest.raises(InputError, match="is not valid JSON"):
        list(read_safely(part, Request()))


def test_a_job_counts_and_names_damaged_files(root: Path, tmp_path: Path):
    for name in "abcdefg":
        write_damaged_gzip(tmp_path / f"{name}.jsonl.gz")
        (tmp_path / f"{name}.jsonl.gz").write_bytes((tmp_path / f"{name}.jsonl.gz").read_bytes()[:200])
    (tmp_path / "h.jsonl").write_bytes(LINES[:100])
    job = plan_scores(tmp_path, root / "detector", tmp_path / "out")
    named = ", ".join(repr(str(tmp_path / f"{name}.jsonl.gz")) for name in "abcde")
    with pytest.warns(DataWarning) as warned:
        counts = run_here(job, ScoreWorker(job.settings))
    assert str(warned[0].message) == f"{named} and 2 more are damaged, and were read only up to the damage."
    assert (counts.damaged, counts.bad) == (7, 7 + 1)  # the last line of the whole file is half a line
    assert json.loads((tmp_path / "out" / "_manifest.json").read_text())["counts"]["damaged"] == 7
