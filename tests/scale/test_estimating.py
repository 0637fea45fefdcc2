"""About how many documents an input has, from its first ones."""

import gzip
from pathlib import Path

import pytest
from scaled import run_here

from apood.data.inputs import Request
from apood.scale.embedding import EmbedWorker
from apood.scale.estimating import count_documents_about, estimate_job
from apood.scale.job import Job, Settings
from apood.scale.scoring import ScoreWorker


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


def test_what_will_be_written_is_about_what_a_worker_writes(root: Path, tmp_path: Path):
    for kind, settings in (
        (EmbedWorker, Settings(str(tmp_path / "embed"), Request(), encoder={"model": str(root / "bert")})),
        (ScoreWorker, Settings(str(tmp_path / "score"), Request(keep=("id",)), detector=str(root / "detector"))),
    ):
        job = Job.plan("score", [str(root / "corpus" / "[01234].jsonl")], settings, {})
        estimate = estimate_job(job, kind, 2)
        assert not job.place.exists()
        run_here(job, kind(settings))
        files = [path for path in job.place.rglob("*") if path.is_file() and not path.name.startswith("_")]
        written = sum(path.stat().st_size for path in files)
        assert written / 2 < estimate.written < written * 2
        assert estimate.workers == 2 and 0 < estimate.seconds < 60 and estimate.tokens > 1000


def test_a_job_without_encoding_has_no_time(root: Path, tmp_path: Path):
    job = Job.plan("measure", [str(root / "corpus")], Settings(str(tmp_path / "out"), Request()), {})
    estimate = estimate_job(job, None, 2)
    assert (estimate.parts, estimate.tokens, estimate.written, estimate.seconds) == (6, None, None, None)
