"""What the first version wrote stays readable: stores and artefacts of format 1 give the scores they gave then."""

import json
from pathlib import Path

import numpy as np
import pytest
import sklearn.base
from make_golden import CALIBRATION, STORES, STREAM, make_batch

import apood
from apood.tokens.digests import content_digest

GOLDEN = Path(__file__).parent
EXPECTED = json.loads((GOLDEN / "scores.json").read_text(encoding="utf-8"))


def open_golden(name):
    """Return the detector of that name and the store that it scored."""
    return apood.load(GOLDEN / "detectors" / name), apood.TokenStore(GOLDEN / STORES.get(name, "store"))


@pytest.mark.parametrize("name", EXPECTED)
def test_old_artefact_scores_an_old_store_as_before(name):
    detector, store = open_golden(name)
    np.testing.assert_allclose(detector.score_samples(store), EXPECTED[name]["scores"], rtol=1e-5, atol=1e-5)
    # Scores that differ by rounding count as equal, and rounding is taken to be larger than then.
    grown = detector.p_values(store) - EXPECTED[name]["p_values"]
    rank = 1 / (len(detector.calibration.scores) + 1)
    assert grown.min() > -1e-9 and grown.max() < rank + 1e-9, "p-values may grow by a rank, and never shrink"
    assert detector.predict(store).tolist() == EXPECTED[name]["decisions"]


@pytest.mark.parametrize("name", EXPECTED)
def test_old_artefact_saved_again_is_the_same_detector(name, tmp_path):
    detector, store = open_golden(name)
    detector.save(tmp_path / "again")
    again = apood.load(tmp_path / "again")
    assert again.get_params(deep=False).keys() == detector.get_params(deep=False).keys()
    np.testing.assert_array_equal(again.score_samples(store), detector.score_samples(store))


def test_a_former_name_of_a_parameter_is_read_as_the_new_one(tmp_path):
    """AP-OOD's `sharpness` was called `temperature`, alone and as a member of a fusion."""
    alone = apood.load(GOLDEN / "detectors" / "ap-ood-aux")
    fusion = apood.load(GOLDEN / "detectors" / "fusion-temperature")
    for detector in (alone, fusion.members[0], fusion.members_[0]):
        assert detector.sharpness == 1.5 and not hasattr(detector, "temperature")
    fusion.save(tmp_path / "again")
    assert "temperature" not in (tmp_path / "again" / "config.json").read_text(encoding="utf-8")


def test_a_parameter_that_did_not_exist_has_the_value_of_then():
    """MahalanobisKNN had no `shrinkage`: its covariance was that of the sample, and a new fit makes it so again."""
    path = GOLDEN / "detectors" / "mahalanobis-knn"
    assert "shrinkage" not in json.loads((path / "config.json").read_text(encoding="utf-8"))["parameters"]
    old = apood.load(path)
    assert old.shrinkage == 0.0 and apood.MahalanobisKNN().shrinkage > 0
    again = sklearn.base.clone(old).fit(make_batch(60, seed=0))
    np.testing.assert_allclose(again.whitening_, old.whitening_, rtol=1e-6)


def test_every_registered_method_has_a_golden_artefact():
    from apood.detectors.contract.registry import METHODS

    assert {apood.load(GOLDEN / "detectors" / name).name for name in EXPECTED} == set(METHODS)


def test_an_old_drift_alarm_continues_as_before():
    alarm = apood.DriftAlarm.resume(CALIBRATION, json.loads((GOLDEN / "drift.json").read_text(encoding="utf-8")))
    assert (alarm.false_alarm, alarm.state.inputs, alarm.state.alarm_at) == (0.01, 300, None)
    again = apood.DriftAlarm(CALIBRATION)
    again.update(STREAM[:300])
    assert alarm.state.log_evidence == pytest.approx(again.state.log_evidence)
    state = alarm.update(STREAM[300:])
    assert (state.alarm_at, state.since) == (407, 399)


def test_old_store_has_its_content_and_its_digest():
    store = apood.TokenStore(GOLDEN / "store")
    assert (len(store), store.dim, sorted(store.channels)) == (24, 6, ["logits", "sample_logprobs", "token_logprobs"])
    assert len(store.index.shards) > 1
    assert store.encoder["model"] == "golden"
    assert content_digest(store) == "af68bb450618b3df25415ce15419aeaf188dc02e5ed8f2df8e789565d00e13b4"


def test_a_detector_that_was_saved_without_a_training_curve_has_none():
    old = apood.load(GOLDEN / "detectors" / "ap-ood-aux")
    assert old.training_curve_.points == () and old.fit_warnings_ == []
