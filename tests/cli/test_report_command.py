"""`apood report` and `apood check`."""

import json
import shutil

import pytest

from apood import Mahalanobis, TokenStore


@pytest.fixture(scope="module")
def detector(apood, stores, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "detector"
    apood("fit", stores / "train", "--out", folder, "--method", "mahalanobis")
    apood("calibrate", folder, stores / "held-out")
    return folder


def test_a_report_is_a_page_and_a_json_file(apood, refused, detector, files, stores, tmp_path):
    page, cache = tmp_path / "report.html", ("--cache", tmp_path / "cache")
    sets = ("--id", stores / "test", "--ood", f"other={files / 'other.jsonl'}", "--new", f"today={stores / 'held-out'}")
    apood("report", detector, *sets, "--out", page, "--foreign", 2, *cache)
    content = json.loads(page.with_suffix(".json").read_text())
    assert [(one["name"], one["role"], one["inputs"]) for one in content["sets"]] == [
        ("ID", "ID", 40), ("other", "OOD", 40), ("today", "new", 60),
    ]  # fmt: skip
    assert [one["set"] for one in content["foreign"]] == ["today"] * 2
    assert content["foreign"][0]["score"] <= content["foreign"][1]["score"]
    assert content["detector"]["training"]["documents"] == 120
    shown = page.read_text()
    assert "<svg" in shown and content["foreign"][0]["text"].split()[0] in shown
    assert "exists already" in refused("report", detector, *sets, "--out", page, *cache)
    apood("report", detector, "--id", stores / "test", "--out", page, "--foreign", 0, "--force")
    assert json.loads(page.with_suffix(".json").read_text())["foreign"] == []


def test_no_set_hides_the_most_foreign_inputs_of_another(apood, detector, stores, tmp_path):
    page = tmp_path / "report.html"
    sets = [option for name in ("other", "held-out", "train") for option in ("--ood", f"{name}={stores / name}")]
    apood("report", detector, "--id", stores / "test", *sets, "--out", page, "--foreign", 4)
    content = json.loads(page.with_suffix(".json").read_text())
    assert [one["set"] for one in content["foreign"]] == ["other", "other", "held-out", "train"]
    first, second, *_ = (one["score"] for one in content["foreign"])
    assert first <= second
    passing = [one for one in content["findings"] if "lets almost all of" in one]
    assert len(passing) == 1 and "held-out (" in passing[0] and "train (" in passing[0]
    assert "other (" not in passing[0] and "apood compare" in passing[0]


def test_a_report_on_stores_opens_a_model_that_moved(apood, refused, model, files, tmp_path, monkeypatch):
    here, there = tmp_path / "here" / "bert", tmp_path / "there"
    shutil.copytree(model, here)
    for name in ("train", "held-out", "test"):
        apood("embed", files / f"{name}.jsonl", "--model", here, "--out", tmp_path / name)
    apood("fit", tmp_path / "train", "--out", tmp_path / "detector", "--method", "mahalanobis")
    apood("calibrate", tmp_path / "detector", tmp_path / "held-out")
    here.rename(there)
    command = ("report", tmp_path / "detector", "--id", tmp_path / "test", "--out", tmp_path / "report.html")
    apood(*command, "--model", there)
    assert len(json.loads((tmp_path / "report.json").read_text())["foreign"]) == 10
    assert "--model is for texts" in refused(*command, "--model", there, "--foreign", 0, "--force")
    monkeypatch.setattr(Mahalanobis, "score_samples", None)  # nothing is scored before the error
    assert "give the folder of the model" in refused(*command, "--force")


def test_what_cannot_be_reported_is_refused(apood, refused, detector, stores, tmp_path):
    given = ("--id", stores / "test")
    same = ("--ood", f"x={given[1]}", "--out", tmp_path / "report.html")
    assert "The OOD x sequences are the ID sequences" in refused("report", detector, *given, *same)
    assert "must end in .html" in refused("report", detector, *given, "--out", tmp_path / "report.pdf")
    twice = ("--ood", f"ID={stores / 'other'}", "--out", tmp_path / "report.html")
    assert "Two sets are called 'ID'" in refused("report", detector, *given, *twice)
    apood("fit", stores / "train", "--out", tmp_path / "plain", "--method", "knn")
    assert "no threshold yet" in refused("report", tmp_path / "plain", *given, "--out", tmp_path / "report.html")


def test_check_says_what_is_wrong(apood, detector, stores):
    shown = apood("check", detector, "--id", stores / "test").stdout
    assert "Nothing is wrong with the accept rate, p-values, copies of training texts, lengths and cut inputs." in shown
    found = json.loads(apood("check", detector, "--id", stores / "train", "--json").stdout)
    assert found["inputs"] == 120 and "data" in [finding["kind"] for finding in found["findings"]]
    assert found["not_checked"] == []
    shown = apood("check", detector, "--id", stores / "other").stdout
    assert shown.count("\n- ") >= 1 and "are not exchangeable" in shown


def test_check_says_what_it_could_not_check(apood, stores, tmp_path):
    """A detector that was saved without facts knows neither its training texts nor its calibration texts."""
    tokens = [TokenStore(stores / name) for name in ("train", "held-out")]
    Mahalanobis().fit(tokens[0]).calibrate(tokens[1]).save(tmp_path / "plain")
    shown = apood("check", tmp_path / "plain", "--id", stores / "test").stdout
    assert "Nothing is wrong with the accept rate, p-values and cut inputs." in shown
    assert "Not checked, because too little is known: copies of training texts, lengths." in shown
