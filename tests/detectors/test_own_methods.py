"""Detectors that are not registered: named as module:Class, saved, loaded, and never imported for a file's sake."""

import json
import sys

import numpy as np
import pytest
import torch
from builders import correlated_sequences
from test_artefact import edit
from torch import Tensor

import apood
from apood import KNN, Detector, Fusion
from apood.detectors.contract.registry import detector_class
from apood.support.errors import ArtefactError, InputError

MODULE = """
from pathlib import Path
from apood import Length

Path(__file__).with_suffix(".imported").touch()

class Own(Length):
    name = "own"
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return the file of a module in the current folder, which leaves a trace when it is imported."""
    file = tmp_path / "own_module.py"
    file.write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield file
    sys.modules.pop("own_module", None)


def fit(detector):
    return detector.fit(correlated_sequences(40, 4))


@pytest.mark.usefixtures("module")
def test_a_class_is_found_saved_and_loaded(tmp_path):
    kind = detector_class("own_module:Own")
    for detector in (kind(), Fusion([kind(), KNN()])):
        fit(detector).save(tmp_path / "saved")
        loaded = apood.load(tmp_path / "saved")
        assert type(loaded) is type(detector)
        assert np.array_equal(*(own.score_samples(correlated_sequences(9, 4)) for own in (detector, loaded)))
    loaded.save(tmp_path / "saved")  # over itself


def test_a_file_makes_apood_import_nothing(module, tmp_path):
    module = module.rename(tmp_path / "stray_module.py")  # whose class no other test has imported
    fit(KNN()).save(tmp_path / "saved")
    for named in (
        {"method": "stray_module:Stray"},
        {"method": "own", "class": "stray_module:Stray"},
        {"class": "stray_module"},
    ):
        edit(tmp_path / "saved", lambda config, named=named: config.update(named))
        with pytest.raises(ArtefactError, match=r"stray_module"):
            apood.load(tmp_path / "saved")
    fit(Fusion([KNN(), KNN(k=2)])).save(tmp_path / "fused")
    edit(tmp_path / "fused", lambda config: config["parameters"]["members"][0].update({"class": "stray_module:Stray"}))
    with pytest.raises(ArtefactError, match=r"apood does not import what a file names: import the class"):
        apood.load(tmp_path / "fused")
    assert not module.with_suffix(".imported").exists() and "stray_module" not in sys.modules


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no_such_module:A", "cannot be imported: ModuleNotFoundError"),
        ("json:A", "cannot be imported: AttributeError"),
        ("json:loads", "not a subclass of Detector"),
        (":", "cannot be imported: ValueError"),
    ],
)
def test_what_is_no_class_is_refused(name, sentence):
    with pytest.raises(InputError, match=sentence):
        detector_class(name)


class Nameless(KNN):
    """It has the name of its base."""


def test_a_subclass_is_not_loaded_as_its_base(tmp_path):
    fit(Nameless()).save(tmp_path / "saved")
    assert type(apood.load(tmp_path / "saved")) is Nameless


def test_a_class_that_moved_is_found_by_its_name(tmp_path):
    """A script that is run is called __main__, and its class has another module when it is imported."""
    fit(Nameless()).save(tmp_path / "saved")
    edit(tmp_path / "saved", lambda config: config.update({"class": "__main__:Nameless"}))
    assert type(apood.load(tmp_path / "saved")) is Nameless


class Odd(Detector):
    """A detector that learns what it is told to."""

    name = "odd"

    mean_: Tensor
    shape_: dict

    def __init__(self, learns=None, setting=None):
        self.learns = learns
        self.setting = setting

    def _fit(self, source, aux, checkpoint):  # noqa: ARG002
        self.mean_ = torch.zeros(source.dim)
        self.shape_ = {"dim": source.dim}
        for name, value in LEARNT.get(self.learns, {}).items():
            setattr(self, name, value)

    def _score(self, tokens):
        return torch.zeros(len(tokens))


LEARNT = {
    "more": {"more_": 1},
    "a text": {"mean_": "zero"},
    "an array": {"mean_": np.zeros(4)},
    "a set": {"shape_": {1, 2}},
    "NaN": {"shape_": {"dim": float("nan")}},
    "a view": {"mean_": torch.zeros(8, 4)[3]},
}


@pytest.mark.parametrize(
    ("detector", "reason"),
    [
        (Odd("more"), "it holds 'more_', which odd does not learn: its class has no such annotation"),
        (Odd("a text"), "it holds a mean_ that odd cannot have learnt: it is str, not Tensor"),
        (Odd("an array"), "ndarray is not JSON"),
        (Odd("a set"), "set is not JSON"),
        (Odd("NaN"), "not JSON compliant"),
        (Odd(setting=Odd), "not JSON"),
        (Odd(setting=complex(1)), "complex is not JSON"),
    ],
    ids=lambda value: None if isinstance(value, Detector) else str(value)[-20:],
)
def test_what_could_not_be_loaded_is_not_saved(tmp_path, detector, reason):
    fit(Odd()).save(tmp_path / "saved")
    before = json.loads((tmp_path / "saved" / "config.json").read_text())
    with pytest.raises(
        ArtefactError, match=rf"^This odd detector is not saved, for it could not be loaded: .*{reason}"
    ):
        fit(detector).save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text()) == before
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_parameters_are_saved_only_if_they_are_allowed(tmp_path):
    detector = fit(apood.APOOD(steps=2))
    detector.seed = -1  # it may be changed after the fit
    with pytest.raises(ArtefactError, match=r"could not be loaded: .*seed must be at least 0"):
        detector.save(tmp_path / "saved")


def test_views_and_shared_tensors_are_saved(tmp_path):
    detector = fit(Odd("a view"))
    detector.save(tmp_path / "saved")
    assert apood.load(tmp_path / "saved").mean_.shape == (4,)
    fit(Nameless()).save(tmp_path / "other")


def test_a_class_without_a_name_says_so(tmp_path):
    class Anonymous(Detector):
        pass

    with pytest.raises(InputError, match=r"Anonymous has no name: set the class attribute `name`"):
        detector = Anonymous()
        detector.dim_ = 4
        detector._remember_parameters()
        detector.save(tmp_path / "saved")


def test_scikit_learn_ranks_and_searches():
    from sklearn.base import is_outlier_detector
    from sklearn.model_selection import GridSearchCV, cross_val_score

    inside, outside = (correlated_sequences(count, 4, seed=i, shift=4.0 * i) for i, count in enumerate((60, 20)))
    sequences = [tokens.numpy() for batch in (inside, outside) for tokens in batch]
    labels = [1] * 60 + [-1] * 20
    folds = [([*range(0, 60, 2)], [*range(1, 60, 2), *range(60, 80)])]  # outliers are only scored
    direct = KNN().fit(sequences[0:60:2])
    assert is_outlier_detector(direct)
    (found,) = cross_val_score(KNN(), sequences, labels, scoring="roc_auc", cv=folds)
    assert found > 0.9
    boxed = np.empty(80, dtype=object)
    boxed[:] = sequences
    search = GridSearchCV(KNN(), {"k": [1, 5]}, scoring="roc_auc", cv=folds, refit=False).fit(boxed, labels)
    assert search.cv_results_["mean_test_score"][1] == found
