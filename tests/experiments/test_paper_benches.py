"""Every experiment of the paper in miniature: what it writes."""

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apood.detectors.ap_ood.detector import APOOD
from apood.evaluation.result import MEAN
from apood.experiments.paper.catalogue import CATALOGUE
from apood.experiments.paper.published import read_published
from apood.experiments.paper.runner import BenchOptions, prepare
from apood.support.errors import FitWarning, InputError

pytestmark = pytest.mark.usefixtures("one_thread", "few_steps")

SEEDS = 2
PNG, TEX = b"\x89PNG\r\n\x1a\n", "\\begin{tabular}"
FAMILIES = {"translation": "marian", "translation-supervised": "marian", "language-model": "gpt_neox"}
FIGURES = {
    "summarization-supervised": ["figure-input", "figure-output"],
    "translation-supervised": ["figure-input", "figure-output"],
    "scaling": ["figure-auroc", "figure-beta"],
}
TABLES = [name for name in CATALOGUE if read_published(name) is not None and "supervised" not in name] + [
    "multiple-instance"
]
ONLY_INPUT = ("language-model", "audio", "multiple-instance")


@pytest.fixture(scope="module")
def outs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def run(outs: Path, models: Callable[[str], Path], texts: Path, sounds: tuple[Path, Path], bags: Path) -> Any:
    """Runs an experiment once and gives its folder; those on the same data share stores and fits."""
    done: dict[str, Path] = {}

    def once(name: str) -> Path:
        if name not in done:
            data, model = texts, None
            if name == "audio":
                data, model = sounds[0], str(sounds[1])
            elif name == "multiple-instance":
                data = bags
            else:
                model = str(models(FAMILIES.get(name, "pegasus")))
            prepared = prepare(name, BenchOptions(data=data, model=model, seeds=SEEDS, out=outs))
            _, written = prepared.run()
            assert all(path.is_file() for path in written)
            done[name] = prepared.folder
        return done[name]

    return once


def results_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_experiment_writes_all_its_files(name: str, run: Callable[[str], Path]) -> None:
    folder = run(name)
    for figure in FIGURES.get(name, ["figure"]):
        assert (folder / f"{figure}.png").read_bytes().startswith(PNG)
        assert "<svg" in (folder / f"{figure}.svg").read_text(encoding="utf-8")
    assert TEX in (folder / "table.tex").read_text(encoding="utf-8")
    assert (folder / "table.md").read_text(encoding="utf-8").startswith(f"# {name}: ")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["seeds"] == list(range(SEEDS)) and manifest["versions"]["apood"]
    assert manifest["command"].startswith(f"apood bench {name} --data ")
    assert f"`{manifest['command']}`" in (folder / "table.md").read_text(encoding="utf-8")
    assert all(len(digest) == 64 for files in manifest["files"].values() for digest in files.values())
    assert all(len(store["digest"]) == 64 and store["sequences"] for store in manifest["stores"])
    assert not any("folder" in store["encoder"] for store in manifest["stores"])  # of this machine alone
    assert results_of(folder)


@pytest.mark.parametrize("name", TABLES)
def test_tables_have_the_rows_sets_and_figures_of_the_paper(name: str, run: Callable[[str], Path]) -> None:
    rows = results_of(run(name))["rows"]
    modes = ["input"] if name in ONLY_INPUT else ["input", "output"]
    assert list(dict.fromkeys(row["mode"] for row in rows)) == modes
    paper = read_published(name)
    for row in rows:
        assert row["failures"] == [] and len(row["splits"]) == SEEDS
        assert (
            set(row["results"]) == {split["dataset"] for split in row["splits"][0]["rows"]} and MEAN in row["results"]
        )
        for metrics in row["results"].values():
            assert 0 <= metrics["auroc"]["mean"] <= 100 and metrics["fpr95"]["std"] >= 0
    if paper is None:
        return
    known = {(mode, row) for mode, row, _ in paper.cells if mode in modes}
    there = {(row["mode"], row["row"]) for row in rows}
    if name != "heads-ablation":  # where T goes up to D, here 16
        assert known <= there
    for row in rows:
        for column in paper.columns:
            theirs = paper.cells.get((row["mode"], row["row"], column))
            if theirs is not None and column in row["results"]:
                assert row["results"][column]["auroc"]["paper"] == theirs.auroc
                text = (run(name) / "table.md").read_text(encoding="utf-8")
                assert f"({theirs.auroc:.1f})" in text and f"({theirs.fpr95:.1f})" in text


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name.endswith("-supervised")])
def test_curves_go_from_no_outliers_to_all(name: str, run: Callable[[str], Path]) -> None:
    results = results_of(run(name))
    counts = {
        label: sorted({r["aux"] for r in results["rows"] if r["row"] == label}) for label in ("AP-OOD", "Deep SAD")
    }
    assert counts == {"AP-OOD": [0, 8, 24], "Deep SAD": [0, 8, 24]}  # 0.8 of 30
    beside = {row["aux"] for row in results["rows"] if row["results"][MEAN]["auroc"]["paper"] is not None}
    assert beside == ({24} if name.startswith("summarization") else set())  # the paper's figures are of all
    sentences = [claim["claim"] for claim in results["claims"]]
    assert {f"AP-OOD has the best mean AUROC at every N' ({mode})" for mode in ("input", "output")} <= {*sentences}
    alone = {row["row"]: row["aux"] for row in results["rows"] if row["row"] == "Relative Mahalanobis"}
    assert alone == {"Relative Mahalanobis": 24}  # 8 are fewer than D = 16
    assert {(s["mode"], s["supervised"]) for s in results["selections"]} == {
        (mode, supervised) for mode in ("input", "output") for supervised in (False, True)
    }
    assert "Binary logits" in (run(name) / "table.md").read_text(encoding="utf-8")


def test_settings_are_selected_from_the_grid_and_used(run: Callable[[str], Path]) -> None:
    results = results_of(run("summarization"))
    searches = [selection for selection in results["selections"] if selection["method"] == "ap-ood"]
    best = {selection["mode"]: selection["best"] for selection in searches}
    assert best["input"]["queries"] == 4 and best["input"]["beta"] in (0.5, 0.25)  # D is 16
    assert all(len(selection["points"]) == 2 for selection in searches)
    used = [row["parameters"] for row in results["rows"] if row["row"] == "AP-OOD"]
    assert [own["beta"] for own in used] == [best["input"]["beta"], best["output"]["beta"]]
    assert {own["recipe"] for own in used} == {"paper"} and {own["steps"] for own in used} == {4}


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("summarization", {"Mahalanobis": 3, "KNN": 12, "Deep SVDD": 3}),
        ("summarization-supervised", {"Binary logits": 12, "Relative Mahalanobis": 3, "Deep SAD": 9}),
    ],
)
def test_other_methods_are_selected_on_the_same_sequences(
    name: str, sizes: dict[str, int], run: Callable[[str], Path]
) -> None:
    results = results_of(run(name))
    searches = {(s["mode"], s["method"], s["supervised"]): s for s in results["selections"]}
    text = (run(name) / "table.md").read_text(encoding="utf-8")
    for row in results["rows"]:
        if row["row"] in sizes and (row["aux"] or name == "summarization"):
            own = searches[row["mode"], row["method"], row["aux"] > 0]
            assert len(own["points"]) == sizes[row["row"]] and own["best"].items() <= row["parameters"].items()
            assert own["sequences"] == searches[row["mode"], "ap-ood", row["aux"] > 0]["sequences"]
            assert row["parameters"].get("steps", 4) == 4, "the steps of the manifest"
    assert all(f"{label}: " in text for label in sizes)
    assert {row["parameters"]["shrinkage"] for row in results["rows"] if "shrinkage" in row["parameters"]} <= {0.01}


def test_scaling_has_every_size_with_its_best_beta(run: Callable[[str], Path]) -> None:
    text = (run("scaling") / "table.md").read_text(encoding="utf-8")
    assert text.count("β = 0.25") + text.count("β = 0.5") == 12 and "(99.4)" in text and "M = 1024" in text
    assert len(results_of(run("scaling"))["rows"]) == 24


def test_heads_are_learnt_independently_and_queries_are_not(run: Callable[[str], Path]) -> None:
    results = results_of(run("heads-vs-queries"))
    apart = results["relative_difference_from_training_alone"]
    assert apart["heads"] < 1e-3 and apart["queries"] > 0.05
    assert list(results["distances"]) == ["T = 1", "T = 4", "T = 16"]
    assert all(one["training"] > 0 for own in results["distances"].values() for one in own)


@pytest.mark.usefixtures("quick_processes")
def test_a_failing_fit_affects_its_row_alone(
    models: Callable[[str], Path], texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = APOOD._fit

    def fails_or_warns(self: APOOD, *arguments: Any) -> None:
        if self.queries == 16:
            raise InputError("No memory.")
        fit(self, *arguments)
        warnings.warn("Odd.", FitWarning, stacklevel=2)

    monkeypatch.setattr(APOOD, "_fit", fails_or_warns)
    options = BenchOptions(data=texts, model=str(models("bert")), seeds=1, out=tmp_path)
    findings, _ = prepare("heads-vs-queries", options).run()
    grid = findings.tables[1].grid
    assert grid.methods == ["T = 1 †", "T = 4 †", "T = 16"] and ("T = 16", "ratio") not in grid.cells
    assert "beta 0." in grid.notes[0]
    assert any(note.startswith("† T = 1, T = 4: 1 of 1 fit warned, the first: ") for note in grid.notes)
    assert "– T = 16: 1 of 1 split failed, the first: split 1: No memory." in grid.notes
    assert [claim.holds for claim in findings.claims] == [True, True, None]

    monkeypatch.setattr(APOOD, "_fit", None)  # processes of their own do not know of it
    findings, _ = prepare("heads-vs-queries", replace(options, out=tmp_path / "more", jobs=2)).run()
    assert findings.tables[1].grid.cells.keys() >= {("T = 16", "ratio")}


def test_the_kernel_does_not_take_the_selected_beta(run: Callable[[str], Path]) -> None:
    results = results_of(run("similarity-ablation"))
    kernel = "idealised kernel, M = D, β = 1/√D"
    assert {row["row"] for row in results["rows"]} == {"dot product", "Euclidean", kernel}
    assert {row["parameters"]["beta"] for row in results["rows"] if row["row"] == kernel} == {None}
    claims = [claim["claim"] for claim in results["claims"] if "(input)" in claim["claim"]]
    assert [claim.split(" ahead of ")[1] for claim in claims] == [
        f"{row} by mean AUROC (input)" for row in ("Euclidean", kernel)
    ]
    assert "the best of 2 settings of the dot product" in (run("similarity-ablation") / "table.md").read_text("utf-8")


def test_sounds_have_the_papers_settings(run: Callable[[str], Path]) -> None:
    text = (run("audio") / "table.md").read_text(encoding="utf-8")
    assert "AP-OOD has M = 128, T = 8 and the defaults of its recipe (paper: β is 1/√D)." in text


def test_attention_maps_show_two_heads_of_each_set(run: Callable[[str], Path]) -> None:
    results = results_of(run("attention-maps"))
    assert results["mode"] == "output"
    assert [(look["dataset"], look["direction"]) for look in results["looks"]] == [
        (name, direction) for name in ("CNN/DM", "extra") for direction in ("positive", "negative")
    ]
    for look in results["looks"]:
        assert sum(look["weights"]) == pytest.approx(1, abs=1e-4) and len(look["weights"]) == len(look["pieces"])


def test_bags_are_separated(run: Callable[[str], Path]) -> None:
    rows = {row["row"]: row for row in results_of(run("multiple-instance"))["rows"]}
    assert rows["Mahalanobis"]["results"]["others"]["auroc"]["mean"] > 90
