"""`apood store`: merge, split, verify and stats."""

import json

import pytest
from typer.testing import CliRunner

from apood.cli.app import app


@pytest.fixture
def parts(apood, stores, tmp_path):
    return json_lines(
        apood("store", "split", stores / "train", "--part", "a=0.6", "--part", "b=0.4", "--out", tmp_path / "parts")
    )


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def json_lines(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_split_and_merge(apood, parts, tmp_path, stores):
    assert [row["store"] for row in parts] == [str(tmp_path / "parts" / name) for name in "ab"]
    merged = json.loads(
        apood("store", "merge", *(row["store"] for row in parts), "--out", tmp_path / "m", "--json").stdout
    )
    whole, again = json_lines(apood("store", "stats", stores / "train", tmp_path / "m"))
    assert merged["sequences"] == whole["sequences"] == sum(row["sequences"] for row in parts)
    assert {k: v for k, v in again.items() if k not in ("store", "bytes")} == pytest.approx(
        {k: v for k, v in whole.items() if k not in ("store", "bytes")}
    )
    assert apood("fit", tmp_path / "m", "--method", "knn", "--out", tmp_path / "detector").exit_code == 0


def test_verify_shows_good_stores_and_names_every_other(apood, parts, tmp_path, stores):
    rows = json_lines(apood("store", "verify", stores / "train", parts[0]["store"]))
    assert [row["sequences"] for row in rows] == [120, 72] and all(row["complete"] for row in rows)
    shard = tmp_path / "parts" / "b" / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\xff")
    result = run("store", "verify", parts[1]["store"], tmp_path / "nothing", parts[0]["store"])
    assert result.exit_code == 2 and json_lines(result) == rows[1:]
    assert result.stderr.startswith("Error: 2 of 3 token stores cannot be used. ") and result.stderr.count("\n") == 1
    assert "shard-00000.safetensors" in result.stderr and "nothing is at that path" in result.stderr


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["a"], "--part takes NAME=SHARE, as in train=0.8, got 'a'"),
        (["a=x"], "--part takes NAME=SHARE"),
        (["a=0.1", "a=0.2"], "Two parts are called 'a'"),
    ],
)
def test_parts_that_cannot_be_read(refused, stores, tmp_path, given, words):
    options = [word for part in given for word in ("--part", part)]
    assert words in refused("store", "split", stores / "train", *options, "--out", tmp_path / "parts")
