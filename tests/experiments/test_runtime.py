"""The runtime experiment in miniature: its files, resuming, and refusals."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import made_once
from typer.testing import CliRunner

from apood.cli.app import app
from apood.experiments import runtime as runtime_module
from apood.experiments.runtime import measure, plan_runtime
from apood.experiments.runtime_profiles import AP_OOD, ENCODER, GENERATION, METHODS, Case, choose_profile
from apood.experiments.runtime_report import PAPER, draw_figures, make_table

PNG, SVG = b"\x89PNG\r\n\x1a\n", b"<?xml"


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["bench", "runtime", *map(str, arguments)])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return made_once(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the command has filled."""
    out = tmp_path_factory.mktemp("runtime") / "out"
    result = run("--quick", "--device", "cpu", "--out", out)
    assert result.exit_code == 0, result.output
    assert "takes about" in result.output and "| AP-OOD | 6.58 ±0.095 |" in result.output
    return out


def test_every_file_is_written(done: Path) -> None:
    for number in (7, 8, 9, 10):
        assert (done / f"figure{number}.png").read_bytes().startswith(PNG)
        assert (done / f"figure{number}.svg").read_bytes().startswith(SVG)
    names = {path.name for path in done.iterdir() if path.suffix not in (".png", ".svg")}
    assert names == {"results.json", "manifest.json", "table11.md", "table11.tex"}


def test_every_case_is_measured_once(done: Path) -> None:
    results = json.loads((done / "results.json").read_text(encoding="utf-8"))
    profile = choose_profile("local", gpu=False, quick=True)
    cases = profile.model_cases(generates=True) + profile.detector_cases()
    names = ("what", "batch", "context", "heads", "queries")
    assert [Case(*(found[name] for name in names)) for found in results["measurements"]] == cases
    assert len(set(cases)) == len(cases)
    assert all(found["mean_ms"] > 0 and found["deviation_ms"] >= 0 for found in results["measurements"])
    assert {found["what"] for found in results["measurements"]} == {*METHODS, ENCODER, GENERATION}


def test_the_manifest_names_versions_and_seed(done: Path) -> None:
    manifest = json.loads((done / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["seed"] == 0
    # The metadata of a package may lack the local part of its version.
    assert manifest["versions"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert {"apood", "source", "python", "transformers"} <= manifest["versions"].keys()


def test_command_device_and_date_stand_in_manifest_and_table(done: Path) -> None:
    manifest = json.loads((done / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["command"] == f"apood bench runtime --device cpu --quick --out {done}"
    assert manifest["device"].startswith("CPU, ")
    title, _, line, *_ = (done / "table11.md").read_text(encoding="utf-8").splitlines()
    assert title.startswith("# runtime: ") and title.endswith("(table 11)")
    assert line == f"`{manifest['command']}`, {manifest['device']}, {manifest['finished'][:10]}."


def test_tables_have_the_papers_times_and_ours(done: Path) -> None:
    markdown, latex = ((done / f"table11.{kind}").read_text(encoding="utf-8") for kind in ("md", "tex"))
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(PAPER) + 1 and len({row.count("|") for row in rows}) == 1
    assert "| generation | 34,940 ±65.8 |" in markdown and "18.8%" in markdown
    assert r"28.4 $\pm$2.51" in latex and latex.count(r"\\") == 1 + len(PAPER) + 1


def test_the_command_has_all_options(models: Callable[[str], Path]) -> None:
    plan = plan_runtime(models("bert"), "paper", "cpu", 3, quick=True)
    given = f"--model {models('bert')} --profile paper --device cpu --seed 3 --quick"
    assert plan.command(Path("here")) == f"apood bench runtime {given} --out here"


def test_redrawing_measures_nothing(done: Path, tmp_path: Path) -> None:
    out = tmp_path / "moved"
    shutil.copytree(done, out)
    (out / "table11.md").unlink()
    assert run("--redraw", "--out", out).exit_code == 0
    assert (out / "table11.md").read_bytes() == (done / "table11.md").read_bytes()  # also where it comes from
    assert (out / "results.json").read_bytes() == (done / "results.json").read_bytes()


@pytest.mark.parametrize("content", [None, "{}"])
def test_redrawing_needs_the_manifest(done: Path, tmp_path: Path, content: str | None) -> None:
    shutil.copy(done / "results.json", tmp_path)
    if content is not None:
        (tmp_path / "manifest.json").write_text(content, encoding="utf-8")
    result = run("--redraw", "--out", tmp_path)
    assert result.exit_code == 2 and "manifest.json" in result.stderr
    assert not (tmp_path / "table11.md").exists()


def test_results_are_replaced_only_when_forced(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("mine", encoding="utf-8")
    arguments = ("--quick", "--device", "cpu", "--out", tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2 and f"There are already results in {tmp_path}: choose another" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
    assert run(*arguments, "--dry-run").exit_code == 0
    assert (tmp_path / "results.json").read_text(encoding="utf-8") == "mine"
    assert run(*arguments, "--force").exit_code == 0
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["measurements"]


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    result = run("--quick", "--device", "cpu", "--dry-run", "--json", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["measurements"] == 21
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("family", "parts"), [("bert", {ENCODER}), ("llama", {ENCODER, GENERATION})])
def test_other_models(models: Callable[[str], Path], tmp_path: Path, family: str, parts: set[str]) -> None:
    plan = plan_runtime(models(family), device="cpu", quick=True)
    assert {case.what for case in plan.cases} == {*METHODS, *parts}
    table = make_table(measure(plan, tmp_path))
    assert {what for what, column in table.cells if column.startswith("here")} >= {AP_OOD, *parts}
    assert ((GENERATION, table.columns[1]) in table.cells) == (GENERATION in parts)


def test_without_generation_figure_10_has_the_encoder_alone(done: Path, tmp_path: Path) -> None:
    results = json.loads((done / "results.json").read_text(encoding="utf-8"))
    results["measurements"] = [found for found in results["measurements"] if found["what"] != GENERATION]
    draw_figures(results, tmp_path)
    heights = [int.from_bytes((folder / "figure10.png").read_bytes()[20:24]) for folder in (done, tmp_path)]
    assert heights[0] == 2 * heights[1]


def test_outputs_have_the_given_length() -> None:
    backbone = plan_runtime(device="cpu", quick=True).model
    ids = backbone.random_ids(3, 5, torch.Generator().manual_seed(1))
    assert backbone.generate(ids, 6, 1).shape == (3, 1 + 6), "the token that a decoder starts from, and the output"
    assert backbone.generate(ids, 4, 2).shape == (3, 1 + 4)


def test_contexts_are_limited_by_the_model() -> None:
    profile = choose_profile("paper", gpu=True, quick=False).within(300)
    assert profile.context == 300 and profile.contexts == (64, 128, 256)
    assert max(case.context for case in profile.model_cases(generates=True) + profile.detector_cases()) == 300


def test_the_paper_profile_has_the_papers_sizes() -> None:
    cases = choose_profile("paper", gpu=True, quick=False).detector_cases()
    assert {case.batch for case in cases} == {1, 2, 4, 8, 16, 32, 64, 128, 256}
    grid = {(case.heads, case.queries) for case in cases if case.what == AP_OOD and case.batch == 32}
    assert grid == {(heads, queries) for heads in (1, 16, 128, 256, 1024) for queries in (1, 4, 16)}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--profile", "mine"], "profile must be one of paper, local, got 'mine'"),
        (["--model", "./nowhere"], "nowhere"),
        (["--device", "abacus"], "abacus"),
        (["--redraw", "--out", "empty"], "There is no empty/results.json to draw from"),
    ],
)
def test_bad_input_is_refused(
    arguments: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("--quick", *arguments)
    assert result.exit_code == 2 and named in result.stderr, result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["{", "[]", '{"measurements": []}'])
def test_other_files_are_refused_as_results(content: str, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(content, encoding="utf-8")
    result = run("--redraw", "--out", tmp_path)
    assert result.exit_code == 2 and "is not what the runtime experiment writes" in result.stderr


def test_an_interrupted_measurement_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = runtime_module._time_case
    seen: list[Case] = []

    def until_the_fourth(plan: Any, case: Case, detectors: Any) -> dict[str, Any]:
        if len(seen) == 3:
            raise KeyboardInterrupt
        seen.append(case)
        return timed(plan, case, detectors)

    monkeypatch.setattr(runtime_module, "_time_case", until_the_fourth)
    arguments = ("--quick", "--device", "cpu", "--out", tmp_path)
    result = run(*arguments)
    assert result.exit_code == 130 and f"what is measured is in {tmp_path}" in result.stderr
    before = json.loads((tmp_path / "measured.json").read_text(encoding="utf-8"))["measurements"]
    assert len(before) == 3 and not (tmp_path / "results.json").exists()

    seen.clear()
    assert run("--quick", "--device", "cpu", "--seed", 1, "--out", tmp_path).exit_code == 130
    assert len(seen) == 3, "another seed is another measurement"
    (tmp_path / "measured.json").write_text("{", encoding="utf-8")
    seen.clear()
    assert run(*arguments).exit_code == 130 and len(seen) == 3
    before = json.loads((tmp_path / "measured.json").read_text(encoding="utf-8"))["measurements"]

    monkeypatch.setattr(runtime_module, "_time_case", timed)
    assert run(*arguments).exit_code == 0
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert results["measurements"][:3] == before and len(results["measurements"]) == 21
    assert not (tmp_path / "measured.json").exists()


@pytest.mark.gpu
def test_it_runs_on_a_gpu(tmp_path: Path) -> None:
    assert run("--quick", "--device", "cuda", "--out", tmp_path).exit_code == 0
