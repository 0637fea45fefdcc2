"""About how many documents an input has, from its first ones."""

import gzip
from pathlib import Path

import pytest

from apood.data.inputs import Request
from apood.scale.estimating import count_documents_about
from apood.scale.job import Job, Settings


def count(folder: Path, name: str) -> float:
    job = Job.plan("score", [name], Settings(str(folder / "out"), Request()), {})
    return count_documents_about(job)[0]


def test_empty_files_at_the_beginning_do_not_hide_the_rest(tmp_path: Path):
    for name in "ab":
        (tmp_path / f"{name}.txt.gz").write_bytes(gzip.compress(b""))
    for name in "cd":
        (tmp_path / f"{name}.txt").write_text("a line of text\n" * 40)
    assert count(tmp_path, str(tmp_path)) == pytest.approx(80, rel=0.1)


def test_the_files_of_a_folder_are_as_many_documents(tmp_path: Path):
    for number in range(30):
        (tmp_path / f"{number}.md").write_text("a text " * (number + 1))
    assert count(tmp_path, f"files:{tmp_path}") == 30
