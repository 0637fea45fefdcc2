"""What a shard holds: the kept fields of rows, as texts."""

import json
from pathlib import Path

import pytest

from apood.scale.shards import write_shard


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
