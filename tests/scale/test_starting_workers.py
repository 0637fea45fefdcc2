"""What a worker on a machine of a cluster refuses before it does anything."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from scaled import plan_scores

from apood.scale.job import Job, Settings
from apood.scale.scoring import ScoreWorker
from apood.support.errors import InputError


def plan(root: Path, out: Path) -> Job:
    return plan_scores(root / "corpus" / "0.jsonl", root / "detector", out)


def on_cluster(job: Job) -> Settings:
    """Return what workers of a cluster are told; those of this process need no folder."""
    return replace(job.settings, on_gpu=False)


def test_a_folder_that_a_machine_does_not_share_is_refused(root: Path, tmp_path: Path):
    job = plan(root, tmp_path / "out")
    with pytest.raises(InputError, match=r"does not see what the command wrote to .*/out: choose a folder"):
        ScoreWorker(on_cluster(job))
    assert not (tmp_path / "out").exists()
    job.begin()
    ScoreWorker(on_cluster(job))
    path = tmp_path / "out" / "_plan.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "inputs": "others"}))
    with pytest.raises(InputError, match="does not see what the command wrote"):
        ScoreWorker(on_cluster(job))


def test_a_folder_that_disappears_is_not_made_again(root: Path, tmp_path: Path):
    job = plan(root, tmp_path / "out")
    job.begin()
    worker = ScoreWorker(on_cluster(job))
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(InputError, match=r"does not see .*/out, which all machines of a cluster share"):
        worker.process(0, job.parts[0])
    assert not (tmp_path / "out").exists()


def test_a_folder_that_disappears_before_a_commit_is_not_made_again(root: Path, tmp_path: Path):
    job = plan(root, tmp_path / "out")

    class Losing(ScoreWorker):
        def make_rows(self, portion):
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
            return super().make_rows(portion)

        def save_more(self, _unit):
            raise AssertionError("not reached")

    job.begin()
    with pytest.raises(InputError, match="which all machines of a cluster share"):
        Losing(on_cluster(job)).process(0, job.parts[0])
    assert not (tmp_path / "out").exists()
