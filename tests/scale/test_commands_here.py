"""The commands with --engine ray, whose workers are this process."""

import json
from pathlib import Path

import pytest
from scaled import run_commands_here
from typer.testing import CliRunner

from apood.cli.app import app
from apood.scale.job import Job


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
