"""`apood recalibrate`: a new threshold from scores and verdicts."""

import json

import numpy as np
import pytest

import apood as package


@pytest.fixture
def write(tmp_path):
    """A function that writes reviewed rows, and returns their file."""

    def write_rows(scores, verdicts, **more):
        file = tmp_path / "reviewed.jsonl"
        rows = [
            {"score": None if np.isinf(score) else score, "verdict": verdict, **more}
            for score, verdict in zip(scores, verdicts, strict=True)
        ]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return file

    return write_rows


@pytest.fixture(scope="session")
def traffic(calibrated):
    """99 ID scores that are a little lower than those of the calibration, and 10 OOD scores."""
    known = package.load(calibrated).calibration.scores
    ids = np.random.default_rng(0).choice(known, size=99) - 0.2 * known.std()
    return [*ids, *(ids[:10] - 5 * known.std())], ["ID"] * 99 + ["OOD"] * 10


def test_the_threshold_comes_from_the_inputs_with_the_verdict_id(apood, calibrated, stores, traffic, write, tmp_path):
    out = tmp_path / "new"
    printed = apood("recalibrate", calibrated, write(*traffic), "--out", out).stdout
    before, after = package.load(calibrated), package.load(out)
    assert after.accept_ == before.accept_ == 0.9
    assert after.calibration.scores.tolist() == sorted(traffic[0][:99])
    assert after.threshold_ < before.threshold_
    assert printed.startswith(
        f"Threshold {after.threshold_:.6g} (before: {before.threshold_:.6g}), from 99 inputs with"
    )
    assert "at least 0.9 of its in-distribution inputs are accepted; for this sample, 0.8" in printed
    assert "Refused among the inputs with the verdict OOD: 10 of 10 (before: 10)." in printed
    store = package.TokenStore(stores / "test")
    assert np.array_equal(after.score_samples(store), before.score_samples(store))


def test_json(apood, calibrated, traffic, write, tmp_path):
    scores, verdicts = traffic
    rows = write([*scores, -np.inf], [*verdicts, "OOD"])
    found = json.loads(
        apood("recalibrate", calibrated, rows, "--out", tmp_path / "new", "--accept", 0.95, "--json").stdout
    )
    assert found["accept"] == 0.95 and found["accepted_low"] < 0.95 < found["accepted_high"]
    assert (found["id"], found["ood"], found["ood_refused"], found["unscored"], found["dropped"]) == (99, 10, 10, 1, 0)


def test_a_detector_without_a_threshold_gets_its_first(apood, fitted, write, tmp_path):
    apood("recalibrate", fitted, write(range(30), ["ID"] * 30), "--out", tmp_path / "new")
    assert package.load(tmp_path / "new").accept_ == 0.95


def test_a_detector_of_texts_stays_one(apood, model, texts, write, tmp_path):
    before = package.TextDetector(model, package.KNN(k=1), accept=0.9).fit(texts["train"])
    before.save(tmp_path / "old")
    apood("recalibrate", tmp_path / "old", write(range(30), ["ID"] * 30), "--out", tmp_path / "new", "--random-sample")
    after = package.load(tmp_path / "new")
    assert isinstance(after, package.TextDetector)
    assert (after.accept, after.facts.calibration, after.facts.training) == (0.9, None, before.facts.training)
    assert after.detector.threshold_ == pytest.approx(2, abs=0.05)


def test_what_cannot_be_used_is_refused(apood, refused, calibrated, traffic, write, tmp_path):
    out, low = tmp_path / "new", package.load(calibrated).threshold_ - 1
    selected = write([low] * 40, ["ID"] * 40)
    message = refused("recalibrate", calibrated, selected, "--out", out)
    assert message.startswith("All 40 reviewed scores are below the threshold of the detector")
    assert message.endswith("If it was a random sample, say so with --random-sample.")
    assert not out.exists()
    apood("recalibrate", calibrated, selected, "--out", out, "--random-sample")
    assert "already exists" in refused("recalibrate", calibrated, write(*traffic), "--out", out)
    apood("recalibrate", calibrated, write(*traffic), "--out", out, "--force")

    other = tmp_path / "other"
    few = write(traffic[0][:5], ["ID"] * 5)
    assert "needs at least 9 calibration scores, got 5" in refused("recalibrate", calibrated, few, "--out", other)
    bad = write([1.0, 2.0], ["ID", "fine"])
    message = refused("recalibrate", calibrated, bad, "--out", other)
    assert (
        message == f"Line 2 of '{bad}' must have ID or OOD as its verdict, got 'fine'; skip such rows with --skip-bad."
    )
    assert "does not exist" in refused("recalibrate", calibrated, "none.jsonl", "--out", other)
    assert not other.exists()
