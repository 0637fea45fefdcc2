"""`apood bench text`: a run, its report and its check, and refusals."""

import json
import shlex
from pathlib import Path

import pytest

DECLARATION = """
[limits]
evaluated = 40
[corpora.small]
status = "untouched"
id = ["train.jsonl", "held-out.jsonl", "more.jsonl"]
[corpora.small.ood]
other = {input = "other.jsonl", kind = "far"}
"""


@pytest.fixture(scope="module")
def declaration(files: Path, texts: dict[str, list[str]]) -> Path:
    lines = [json.dumps({"text": f"{text} {text}"}) for own in texts.values() for text in own[:60]]
    (files / "more.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (files / "corpora.toml").write_text(DECLARATION, encoding="utf-8")
    return files / "corpora.toml"


def test_a_run_is_shown_reported_and_checked(apood, refused, declaration, model, tmp_path):
    out = tmp_path / "out"
    run = ("bench", "text", "run", declaration, "--model", f"tiny={model}", "--method", "mahalanobis")
    run += ("--layers", "last", "--out", out)
    facts = json.loads(apood(*run, "--dry-run", "--json").stdout)
    assert facts["tiny-small, last"].endswith("texts to embed; 3 rows, 3 fits") and not out.exists()
    assert "tiny-small, last" in apood(*run, "--dry-run").stdout and not out.exists()

    shown = apood(*run).stdout
    assert "tiny-small, last: measured" in shown and "report.md" in shown
    assert "To write a report about the default on tiny-small, last" in shown.replace("\n", " ")
    stores = [word for line in shown.splitlines() for word in shlex.split(line) if "stores" in word]
    assert len(stores) == 4 and all(Path(word.rpartition("=")[2], "index.json").is_file() for word in stores)
    assert len(json.loads(apood(*run, "--json").stdout)["written"]) == 4

    apood("bench", "text", "report", out, "--out", tmp_path / "again.md")
    assert (tmp_path / "again.md").read_text(encoding="utf-8") == (out / "report.md").read_text(encoding="utf-8")

    result = out / "results" / "tiny-small" / "last" / "mahalanobis-raw.json"
    check = ("bench", "text", "check", result, "--declaration", declaration, "--model", f"tiny={model}", "--out", out)
    assert "all figures are the same within 0.5 percentage points" in apood(*check).stdout
    content = json.loads(result.read_text(encoding="utf-8"))
    content["means"]["all"]["plain"]["fpr95"][0] += 3
    result.write_text(json.dumps(content), encoding="utf-8")
    assert "differs from what was measured now: fpr95 of the mean over all, plain is" in refused(*check)


def test_bad_options_are_refused(refused, declaration, model, tmp_path):
    run = ("bench", "text", "run", declaration, "--model", f"tiny={model}", "--out", tmp_path / "out")
    assert "There is no method 'magic'" in refused(*run, "--method", "magic")
    assert "There is no corpus 'big'" in refused(*run, "--corpus", "big")
    assert "'--mode'" in refused(*run, "--mode", "sideways")
    assert "No model can be used" in refused(*run, "--mode", "output")
    assert "cannot be read" in refused("bench", "text", "run", tmp_path / "none.toml", "--model", f"tiny={model}")
    assert "NAME=FOLDER" in refused("bench", "text", "run", declaration, "--model", model)
    assert "There are no results below" in refused("bench", "text", "report", tmp_path)
    assert "cannot be read" in refused(
        "bench", "text", "check", tmp_path / "none.json", "--declaration", declaration, "--model", f"tiny={model}"
    )
    assert not (tmp_path / "out").exists()
