"""Inputs that are written again are other inputs, and data sets of the hub have one commit for all workers."""

import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bucket import put_bucket_in_place

from apood.data.hub import HubData
from apood.data.inputs import Request
from apood.data.parts import find_parts, find_versions, pin_input, read_part
from apood.support.errors import InputError

COMMIT, OTHER = "a" * 40, "b" * 40


def write_again(path: Path) -> None:
    """Write a file of the same size, an hour later."""
    before = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 3600 * 10**9))


def make_table(path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": ["one"]}), path)


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    put_bucket_in_place(tmp_path / "cloud", monkeypatch)
    for folder in ("cloud/bucket", "texts", "set"):
        (tmp_path / folder).mkdir()
    for name in ("a.jsonl", "cloud/bucket/a.txt", "texts/a.md", "b.en", "b.fr"):
        (tmp_path / name).write_text('{"text": "one"}\n')
    make_table(tmp_path / "set" / "train.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("a.jsonl", "a.jsonl"),
        ("s3://bucket/*.txt", "cloud/bucket/a.txt"),
        ("s3://bucket/a.txt", "cloud/bucket/a.txt"),
        ("files:texts", "texts/a.md"),
        ("moses:b:en-fr", "b.fr"),
        ("newsroom:a.jsonl", "a.jsonl"),
        ("newsroom:s3://bucket/a.txt", "cloud/bucket/a.txt"),
    ],
)
def test_an_input_that_is_written_again_has_another_version(corpus: Path, name: str, file: str) -> None:
    (before,) = find_parts([name], 100)
    assert before.size > 0 and find_versions([name]) == {before.name: before.version}
    assert find_parts([name], 100) == [before]
    write_again(corpus / file)
    (after,) = find_parts([name], 100)
    assert (after.name, after.size) == (before.name, before.size) and after.version != before.version


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("files:texts", lambda corpus: (corpus / "texts" / "b.txt").write_text("two")),
        ("hf:set:train", lambda corpus: write_again(corpus / "set" / "train.parquet")),
    ],
)
def test_a_folder_that_changes_has_another_version(corpus: Path, name: str, change: Callable[[Path], object]) -> None:
    before = find_versions([name])
    change(corpus)
    assert find_versions([name]).keys() == before.keys() and find_versions([name]) != before


def test_hidden_files_of_a_folder_do_not_count(corpus: Path) -> None:
    before = find_versions(["hf:set:train"])
    (corpus / "set" / ".git").mkdir()
    for name in (".git/index", ".DS_Store"):
        (corpus / "set" / name).touch()
    assert find_versions(["hf:set:train"]) == before


def test_without_the_library_of_the_hub_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"'hf:owner/name:train' needs .* huggingface_hub: pip install 'apood\[hf\]'"):
        pin_input("hf:owner/name:train")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A hub with one set, whose newest commit is `commit`. It notes which revisions are asked for, and read."""
    import datasets

    state = SimpleNamespace(commit=COMMIT, asked=[], read=[])
    (tmp_path / "set").mkdir()
    for number in range(3):
        make_table(tmp_path / "set" / f"train-0000{number}-of-00003.parquet")
    load = datasets.load_dataset

    def ask(_: Any, path: str, *, revision: str | None, timeout: float) -> SimpleNamespace:
        assert path == "owner/name" and timeout
        state.asked.append(revision)
        return SimpleNamespace(sha=state.commit)

    def read(path: str, *, split: str, revision: str | None, streaming: bool, **_: Any) -> Any:
        assert path == "owner/name" and streaming
        state.read.append(revision)
        return load(str(tmp_path / "set"), split=split, streaming=True)

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", ask)
    monkeypatch.setattr("datasets.load_dataset", read)
    monkeypatch.setattr("apood.data.hub._load_commit", cache(HubData._load))
    return state


@pytest.mark.parametrize("given", ["hf:owner/name:train", "hf:owner/name:train@main"])
def test_all_workers_read_the_newest_commit_of_the_beginning(hub: SimpleNamespace, given: str) -> None:
    name = pin_input(given)
    assert name == f"hf:owner/name:train@{COMMIT}"
    parts = find_parts([name], 100)
    hub.commit = OTHER
    assert len(parts) == 3 and find_versions([name]) == {name: COMMIT} and pin_input(name) == name
    records = [record for part in parts for record in read_part(part, Request())]
    assert len(records) == 3 and records[2].place == f"row 1 of file 3 of {name!r}"
    assert hub.read == [COMMIT], "a worker loads a set once, and not for each of its files"


def test_what_cannot_be_pinned_is_left_as_it_is(hub: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "hf:owner").touch()
    local = f"hf:{tmp_path / 'set'}:train"
    for name in ("a.jsonl", local, "s3://bucket/x", "files:texts", str(tmp_path / "hf:owner")):
        assert pin_input(name) == name
    exported = "hf:owner/name:train@refs/convert/parquet"
    assert pin_input(exported) == exported and hub.asked == []
    assert find_versions([exported]) == {exported: COMMIT}
    hub.commit = OTHER
    assert find_versions([exported]) == {exported: OTHER}


def test_sets_of_the_paper_are_pinned_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HubData, "find_commit", lambda _: COMMIT)
    assert pin_input("c4:train") == f"c4:train@{COMMIT}"
    assert pin_input("xsum:train") == "xsum:train"  # read from a branch that the hub generates
