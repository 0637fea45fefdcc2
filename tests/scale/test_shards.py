"""What a shard holds: the kept fields of rows, as texts."""

import json
from pathlib import Path

import pytest

from apood.data.record import BadRecord
from apood.scale.shards import read_errors, write_shard


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a title", "a title"),
        (None, None),
        (3, "3"),
        (["ä", 1], '["ä", 1]'),
        ("half \ud800", "half \\ud800"),
        ({"a\udfff": ["\ud800"]}, '{"a\\udfff": ["\\ud800"]}'),
    ],
)
def test_a_kept_field_is_a_text_whatever_it_holds(tmp_path: Path, value: object, text: str | None):
    import pyarrow.parquet

    path = tmp_path / "rows-000000-00000.parquet"
    write_shard(path, [{"place": "line 1", "title": value}], ("error",), ("title",), last=True)
    (row,) = pyarrow.parquet.read_table(path).to_pylist()
    assert row["title"] == text
    if isinstance(value, dict):
        assert json.loads(str(row["title"])) == value


def test_the_first_errors_name_the_places(tmp_path: Path):
    own = {"place": "line 1 of 'a.txt'", "error": "Line 1 of 'a.txt' is not UTF-8."}
    dead = {"place": "line 2 of 'a.txt'", "error": "It was given up: each worker died."}
    for name, rows in (("1-00000", [own]), ("0-00001", [{"place": "line 3 of 'b.txt'"}, dead]), ("0-00000", [])):
        write_shard(tmp_path / f"rows-00000{name}.parquet", rows, ("error",), (), last=True)
    named = BadRecord(dead["place"], "Line 2 of 'a.txt': It was given up: each worker died.")
    assert read_errors(tmp_path, 5) == [named, BadRecord(own["place"], own["error"])]
    assert read_errors(tmp_path, 1) == [named]
