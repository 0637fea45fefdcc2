"""From stores to the best detector, in real processes that may be interrupted."""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from processes import Program
from typer.testing import CliRunner

from apood.cli.app import app
from apood.detectors.contract.artefact import load_detector
from apood.detectors.knn import KNN
from apood.evaluation.selection import HELD_OUT_PROMISE, select
from apood.tokens.store import TokenStore

KNN_GRID = ("--method", "knn", "--grid", "k=1,20,500", "--grid", "normalize=pooled,none", "--jobs", "1")


def test_a_cache_that_cannot_be_written_is_refused_before_any_fit(refused, stores, tmp_path):
    (tmp_path / "link").symlink_to("nothing")
    sentence = refused(
        "select", stores / "train", "--method", "knn", "--out", tmp_path / "o", "--cache", tmp_path / "link"
    )
    assert "link is not a folder" in sentence


def test_a_dry_run_fits_nothing(apood, stores, tmp_path):
    given = ("select", stores / "train", "--aux", stores / "other", *KNN_GRID, "--out", tmp_path / "search")
    assert json.loads(apood(*given, "--dry-run", "--json").stdout)["fits"] == 7, "six settings, and the default"
    assert "fits" in apood(*given, "--dry-run").stdout and not (tmp_path / "search" / "results.json").exists()


OWN = """
from apood import KNN

class Own(KNN):
    name = "own"

    def __init__(self, k: int = 5, other: float = 1.0) -> None:
        super().__init__(k=k)
        self.other = other

    def hyperparameter_space(self, dim, *, supervised):
        return [{"k": 1}, {"other": 2.0}]
"""


def test_settings_may_change_different_parameters(apood, stores, tmp_path, monkeypatch):
    (tmp_path / "own_search.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    options = ("--aux", stores / "other", "--method", "own_search:Own", "--jobs", 1, "--out", tmp_path / "search")
    found = json.loads(apood("select", stores / "train", *options, "--json").stdout)
    sys.modules.pop("own_search")
    assert (found["method"], found["parameters"], found["seeds"]) == ("own", {"k": 5, "other": 1.0}, 1)
    assert found["stores"] == {"id": str(stores / "train"), "aux": str(stores / "other")}
    assert len(found["points"]) == 3 and {"detector", "heatmap.png"} < {p.name for p in (tmp_path / "search").iterdir()}


@pytest.mark.usefixtures("quick_processes")
def test_texts_are_embedded_on_the_way(apood, refused, stores, files, model, tmp_path):
    texts = ("select", files / "train.jsonl", "--aux", files / "other.jsonl", *KNN_GRID, "--json")
    found = json.loads(apood(*texts, "--model", model, "--out", tmp_path / "a", "--cache", tmp_path / "cache").stdout)
    same = ("select", stores / "train", "--aux", stores / "other", *KNN_GRID, "--json")
    of_stores = json.loads(apood(*same, "--out", tmp_path / "b").stdout)
    assert [point.get("auroc") for point in found["points"]] == [point.get("auroc") for point in of_stores["points"]]
    assert "name a model, as in --model minilm" in refused(*texts, "--out", tmp_path / "c")
    assert "--model is for texts" in refused(*same, "--model", model, "--out", tmp_path / "c")


@pytest.mark.usefixtures("quick_processes")
def test_the_best_detector_can_be_used_at_once(apood, refused, stores, tmp_path):
    out = tmp_path / "search"
    command = ["select", stores / "train", "--validation", stores / "held-out", "--aux", stores / "other", *KNN_GRID]
    shown = apood(*command, "--out", out).stdout
    expected = select(
        KNN(),
        *(TokenStore(stores / name, channels=()) for name in ("train", "held-out", "other")),
        grid={"k": [1, 20, 500], "normalize": ["pooled", "none"]},
    )
    assert {path.name for path in out.iterdir()} == {"results.json", "heatmap.png", "detector", "cache"}
    assert (out / "heatmap.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((out / "results.json").read_text())
    assert results["best"] == expected.best.settings and results["sequences"]["aux_validation"] == 40
    assert [p["settings"] for p in results["points"]] == [p.settings for p in expected.points]
    assert [p.get("auroc") for p in results["points"]] == [p.to_json().get("auroc") for p in expected.points]
    assert load_detector(out / "detector").get_params() == expected.detector.get_params()

    lines = [line.split() for line in shown.splitlines()]
    header = next(number for number, line in enumerate(lines) if line[:2] == ["k", "normalize"])
    rows = lines[header + 2 : header + 9]
    best = expected.best.settings
    assert rows[0][:3] == ["▸", str(best["k"]), best["normalize"]]
    assert [row[:3] for row in rows[-2:]] == [["500", "pooled", "–"], ["500", "none", "–"]]
    assert (
        "as given" in shown
        and "2 failed: k=500 neighbours" in shown
        and "60 ID against 40 AUX" in " ".join(shown.split())
    )

    apood("calibrate", out / "detector", stores / "test", "--accept", "0.9")
    assert "decision" in apood("score", out / "detector", stores / "other").stdout

    # what was found is only replaced on purpose
    assert "--force" in refused(*command, "--out", out)
    assert "nowhere" in refused("select", tmp_path / "nowhere", "--method", "knn", "--out", out, "--force")


@pytest.mark.usefixtures("quick_processes")
def test_without_outliers_it_says_what_it_cannot_promise(apood, stores, tmp_path):
    searched = ("--method", "ap-ood", "--set", "steps=15", "--grid", "beta=0.1,1", "--jobs", "1")
    shown = apood("select", stores / "train", *searched, "--out", tmp_path / "search").stdout
    assert HELD_OUT_PROMISE in shown and "training" in shown and "±" not in shown
    assert "the settings as given" in shown and str(tmp_path / "search" / "detector") in "".join(shown.split())
    assert load_detector(tmp_path / "search" / "detector").get_params()["beta"] is None
    points = json.loads((tmp_path / "search" / "results.json").read_text())["points"]
    assert all(
        {"held_out_loss", "held_out_distance", "training_distance", "disaster"} <= point.keys() for point in points
    )


REFUSED = [
    (["--method", "nothing"], "no method 'nothing'"),
    (["--method", "default"], "has no settings that are usually searched"),
    (["--method", "knn"], "AUX sequences"),
    (["--method", "ap-ood", "--supervised"], "has to be given some"),
    (["--method", "knn", "--grid", "k"], "got 'k'."),
    (["--method", "knn", "--grid", "k="], "got 'k='."),
    (["--method", "knn", "--grid", "k=1,two"], "got 'two'."),
    (["--method", "knn", "--grid", "k=1", "--grid", "k=2"], "'k' is in the grid twice"),
    (["--method", "knn", "--grid", "nothing=1"], "no parameter 'nothing'"),
    (["--method", "ap-ood", "--set", "beta=1"], "beta is both set and searched"),
    (["--method", "knn", "--set", "k=1", "--grid", "k=1,2"], "k is both set and searched"),
    (["--method", "knn", "--set", "k=0"], "k must be at least 1, got 0."),
    (["--method", "knn", "--aux", "nowhere"], "nowhere"),
    (
        ["--method", "ap-ood", "--aux", "other", "--supervised", "--aux-share", "0"],
        "aux_share must be a finite number > 0 and < 1",
    ),
    ([], "--method, such as ap-ood"),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED)
def test_what_cannot_work_is_refused_before_any_work(refused, stores, tmp_path, monkeypatch, options, sentence):
    monkeypatch.chdir(stores)
    assert sentence in refused("select", "train", "--out", tmp_path / "search", *options)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("quick_processes")
def test_a_search_that_was_killed_after_saving_can_be_repeated(apood, refused, stores, tmp_path, monkeypatch):
    command = ["select", stores / "train", "--aux", stores / "other", "--method", "knn", "--grid", "k=1,2"]
    command += ["--jobs", "1", "--out", tmp_path / "search"]

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("apood.cli.select._show", die)
        run = CliRunner().invoke(app, [*map(str, command)])
    assert run.exit_code == 130 and (tmp_path / "search" / "detector").exists()
    assert "--force" in refused(*command, "--seeds", "1", "--set", "normalize=none"), "another search"
    apood(*command)
    assert "--force" in refused(*command)


def finished(cache):
    """The fits that are complete, and when they were."""
    return {path.parent.name: path.stat().st_mtime_ns for path in cache.glob("*/fit.json")}


def members(group):
    """The processes of a group that are still there."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            state, _, owner = entry.read_text().rpartition(")")[2].split()[:3]
            if int(owner) == group and state != "Z":
                found.append(entry.parent.name)
    return found


def test_ctrl_c_ends_all_processes_and_the_same_command_goes_on(apood, stores, tmp_path):
    out, cache = tmp_path / "search", tmp_path / "cache"
    command = ["select", stores / "train", "--aux", stores / "other", "--out", out, "--cache", cache]
    command += ["--method", "ap-ood", "--set", "steps=30", "--grid", "beta=0.1,0.3,1,2"]
    with Program(*command, "--jobs", "2") as program:
        while program.is_running() and not finished(cache):
            time.sleep(0.01)
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does
        code, output, messages = program.end()
    assert code == 130 and output == ""
    assert messages.startswith("Interrupted: ") and str(cache) in messages and messages.count("\n") == 1
    deadline = time.monotonic() + 60
    while members(program.pid) and time.monotonic() < deadline:  # Python's own helper goes a moment after the program
        time.sleep(0.01)
    assert members(program.pid) == []
    done = finished(cache)
    assert done and not (out / "detector").exists()

    found = json.loads(apood(*command, "--jobs", "1", "--json").stdout)
    assert found == json.loads((out / "results.json").read_text())
    assert len(finished(cache)) == 5 and done.items() <= finished(cache).items()
    assert (out / "detector").exists()
