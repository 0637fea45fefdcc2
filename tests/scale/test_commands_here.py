"""The commands with --engine ray, whose workers are this process."""

import json
from pathlib import Path

import pytest
from scaled import run_commands_here
from typer.testing import CliRunner

from apood.cli.app import app
from apood.scale.embedding import EmbedWorker
from apood.scale.job import Job
from apood.scale.units import Unit


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Job]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return run_commands_here(monkeypatch)


def run(*command: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*map(str, command), "--engine", "ray"])
    assert result.exit_code == code, result.output
    return result.output


def fit(root: Path, out: Path, *options: object, texts: Path | None = None, code: int = 0) -> str:
    command = ["fit", texts or root / "corpus", "--model", root / "bert", "--out", out, "--method", "mahalanobis"]
    return run(*command, *options, code=code)


@pytest.mark.usefixtures("jobs")
def test_a_fit_says_how_many_documents_it_skipped(root: Path, tmp_path: Path):
    output = fit(root, tmp_path / "fitted", "--sample", 100)
    assert output.startswith("Skipped: 13 documents that could not be used.\n")
    assert json.loads(fit(root, tmp_path / "other", "--sample", 100, "--json"))["bad"] == 13


@pytest.mark.usefixtures("jobs")
def test_tokens_of_two_models_do_not_become_one_store(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A machine of the cluster may have another model of the same name and the same D."""
    save, saved = EmbedWorker.save_more, iter(range(10**6))

    def save_as_other(worker: EmbedWorker, unit: Unit) -> None:
        if next(saved) == 3:
            worker.encoder.identity = {**worker.encoder.identity, "fingerprint": "other"}
        save(worker, unit)

    monkeypatch.setattr(EmbedWorker, "save_more", save_as_other)
    output = run("embed", root / "corpus", "--model", root / "bert", "--out", tmp_path / "store", code=2)
    assert "cannot be merged, because their encoder differs: fingerprint" in output
    assert not (tmp_path / "store").exists()
