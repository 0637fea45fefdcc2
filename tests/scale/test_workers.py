"""What a worker on a machine of a cluster refuses before it does anything, and what it holds in memory."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from scaled import plan_scores

from apood.data.inputs import Request
from apood.data.record import Record
from apood.encoders.opening import open_encoder
from apood.pipeline.token_cache import describe_source
from apood.scale.embedding import EmbedWorker
from apood.scale.job import Job, Settings
from apood.scale.scoring import ScoreWorker, digest_detector
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


def test_other_code_of_the_same_version_is_refused(root: Path, tmp_path: Path):
    job = plan(root, tmp_path / "out")
    with pytest.raises(InputError, match=r"has other code of apood .* than the command: install the same everywhere"):
        ScoreWorker(replace(job.settings, source="other code"))


def test_another_detector_is_refused(root: Path, tmp_path: Path):
    shutil.copytree(root / "detector", tmp_path / "detector")
    settings = Settings(str(tmp_path / "out"), Request(), detector=str(tmp_path / "detector"))
    identity = {"detector": digest_detector(tmp_path / "detector")}
    job = Job.plan("score", [str(root / "corpus")], settings, identity)
    job.begin()
    ScoreWorker(on_cluster(job))
    path = tmp_path / "detector" / "config.json"
    path.write_text(path.read_text() + "\n")
    with pytest.raises(InputError, match=r"The detector .*/detector on the machine .* is not the one with which"):
        ScoreWorker(on_cluster(job))


def test_another_model_of_the_same_name_is_refused(root: Path, tmp_path: Path):
    model = tmp_path / "model"
    shutil.copytree(root / "bert", model)
    settings = Settings(str(tmp_path / "parts"), Request(), encoder={"model": str(model)})
    source = describe_source(model, lambda: open_encoder(model))
    job = Job.plan("embed", [str(root / "corpus")], settings, {"encoder": {"model": source}, "dtype": "float16"})
    job.begin()
    EmbedWorker(on_cluster(job))
    weights = load_file(model / "model.safetensors")
    name = next(iter(weights))
    save_file({**weights, name: weights[name] + 1}, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"The model .*/model on the machine .* is not the one that the command has"):
        EmbedWorker(on_cluster(job))


def test_a_machine_whose_gpu_torch_cannot_use_is_refused_if_others_have_one(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match=r"torch cannot use the GPU of the machine .*: install torch with CUDA on all"):
        ScoreWorker(replace(plan(root, tmp_path / "out").settings, on_gpu=True))


def test_tokens_wait_for_their_commit_in_the_dtype_of_the_store(root: Path, tmp_path: Path):
    settings = Settings(str(tmp_path / "parts"), Request(), encoder={"model": str(root / "bert")})
    worker = EmbedWorker(settings)
    worker._encode_alone([Record("word1", "line 1")])
    assert [batch.values.dtype for batch in worker._batches] == [torch.float16]
