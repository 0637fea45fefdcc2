"""`apood bench`: the list, the cost, a run, and refusals."""

import json
from pathlib import Path

import huggingface_hub.constants
import pytest

from apood.experiments.paper.catalogue import CATALOGUE, load_experiment

MANIFEST = """
id_train = "train.jsonl"
id_test = "test.jsonl"
[ood]
other = "other.jsonl"
[settings]
train = 40
evaluated = 20
max_tokens = 8
steps = 3
"""


@pytest.fixture
def data(files: Path) -> Path:
    (files / "apood-data.toml").write_text(MANIFEST, encoding="utf-8")
    return files


def test_the_experiments_are_listed_with_what_they_show(apood):
    bare, shown = (" ".join(apood("bench", *words).stdout.replace("│", "").split()) for words in ((), ("--help",)))
    for name, listed in CATALOGUE.items():
        assert f"{name} {listed.shows}: {listed.about}" in bare
        assert f"{name} {listed.shows[0].upper()}" in shown
        assert load_experiment(name).name == name
    assert "toy figures 1 and 2" in bare and "runtime table 11" in bare
    assert "toy Run the toy experiment" in shown and "runtime Measure the time" in shown


def test_the_help_of_an_experiment_names_it(apood):
    shown = " ".join(apood("bench", "audio", "--help").stdout.split())
    assert "apood bench audio [OPTIONS]" in shown and "table 3" in shown and "--data my-data" in shown


def test_a_dry_run_shows_the_cost_and_writes_nothing(apood, data, model, tmp_path):
    out = tmp_path / "out"
    arguments = ("bench", "summarization", "--data", data, "--model", model, "--out", out, "--dry-run")
    shown = " ".join(apood(*arguments).stdout.split())
    assert "experiment summarization: unsupervised, a summarizer (table 1)" in shown
    assert "other: 25 from other.jsonl" in shown and "disk about" in shown and "time about" in shown
    assert json.loads(apood(*arguments, "--json").stdout)["left out"] == "CNN/DM, Newsroom, Reddit, Samsum"
    assert not out.exists()


def test_a_run_shows_its_tables_and_the_files_it_wrote(apood, data, model, tmp_path):
    arguments = ("bench", "score-ablation", "--data", data, "--model", model, "--seeds", "1", "--out", tmp_path)
    shown = apood(*arguments).stdout
    assert "Input OOD" in shown and "s_min" in shown and "table.tex" in shown
    results = json.loads(apood(*arguments, "--json").stdout)
    assert results == json.loads((tmp_path / "score-ablation" / "results.json").read_text(encoding="utf-8"))


def test_bad_options_are_refused(refused, data, tmp_path):
    assert refused("bench", "magic") == (
        f"There is no experiment 'magic'; there are {', '.join(['toy', 'runtime', 'text', *CATALOGUE])}."
    )
    assert "Data of your own need --data" in refused("bench", "audio", "--out", tmp_path)
    assert "'--profile'" in refused("bench", "audio", "--profile", "mine")
    assert "There is no OOD set 'x' to skip" in refused("bench", "audio", "--data", data, "--skip", "x")
    assert "the paper leaves it open" in refused("bench", "audio", "--profile", "paper")
    sentence = refused("bench", "summarization", "--profile", "paper", "--dry-run")
    assert "newsroom" in sentence and "--skip NAME leaves an OOD set out" in sentence


def test_a_missing_model_of_the_paper_is_named(refused, data, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    command = ("bench", "summarization", "--data", data, "--out", tmp_path / "out")
    paper = "Without --model, summarization takes the paper's model 'google/pegasus-xsum': There is no local folder"
    assert refused(*command).startswith(paper)
    assert refused(*command, "--model", "nobody/nothing").startswith("There is no local folder 'nobody/nothing'")
