"""Saved detectors of every method: whole, the same anywhere, and refused when anything is wrong with them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

import apood
from apood.detectors.registry import METHODS
from apood.support.errors import ArtefactError
from apood.tokens.store import TokenStore


def learnt(detector):
    return {key: value for key, value in vars(detector).items() if key.endswith("_")}


@pytest.fixture
def saved(calibrated, tmp_path):
    """The folder of a calibrated detector of the method in turn."""
    calibrated.save(tmp_path / "detector")
    return tmp_path / "detector"


def edit(folder, change):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def test_a_saved_detector_comes_back_as_it_was(calibrated, saved, test_set):
    loaded = apood.load(saved)
    assert type(loaded) is type(calibrated) and loaded.get_params() == calibrated.get_params()
    assert learnt(loaded).keys() == learnt(calibrated).keys()
    for key, value in learnt(calibrated).items():
        found = learnt(loaded)[key]
        assert type(found) is type(value), key
        assert torch.equal(found, value) if torch.is_tensor(value) else found == value, key
    for action in ("score_samples", "decision_function", "predict", "p_values"):
        assert np.array_equal(getattr(loaded, action)(test_set), getattr(calibrated, action)(test_set))


def test_a_loaded_detector_lives_on(saved, fitted, train, held_out, test_set):
    loaded = apood.load(str(saved))
    loaded.calibrate(held_out[:30], 0.8).save(saved)  # over itself
    again = apood.load(saved)
    assert again.accept_ == 0.8 and len(again.calibration_scores_) == 30
    assert np.array_equal(again.fit(train).score_samples(test_set), fitted.score_samples(test_set))


def test_an_artefact_is_two_files_without_pickle(saved):
    assert sorted(path.name for path in saved.iterdir()) == ["config.json", "model.safetensors"]
    config = json.loads((saved / "config.json").read_text())
    assert config["schema"] == 1 and config["versions"]["apood"] == apood.__version__
    assert [path.name for path in saved.parent.iterdir()] == ["detector"], "no temporary folder is left"


def test_saving_needs_a_fit(new, tmp_path):
    with pytest.raises(NotFittedError):
        new().save(tmp_path / "detector")
    assert not any(tmp_path.iterdir())


def test_an_infinite_threshold_survives(calibrated, tmp_path):
    calibrated.threshold_ = -np.inf
    calibrated.save(tmp_path / "detector")
    assert apood.load(tmp_path / "detector").threshold_ == -np.inf


def test_numbers_of_numpy_survive_as_parameters(new_detector, train, test_set, tmp_path):
    detector = new_detector("knn", k=np.int64(3)).fit(train)
    detector.save(tmp_path / "knn")
    assert np.array_equal(apood.load(tmp_path / "knn").score_samples(test_set), detector.score_samples(test_set))
    detector = new_detector("mahalanobis", eigenvalue_floor=np.float32(0.5)).fit(train)
    detector.save(tmp_path / "mahalanobis")
    loaded = apood.load(tmp_path / "mahalanobis")
    assert np.array_equal(loaded.score_samples(test_set), detector.score_samples(test_set))


def test_the_encoder_is_remembered(new, train, stored, tmp_path):
    encoder = {"model": "a/model", "layer": -1, "mode": None, "special": True}
    new().fit(stored(train, encoder)).save(tmp_path / "detector")
    assert apood.load(tmp_path / "detector").encoder_ == encoder


def test_every_method_scores_the_same_in_a_new_process(new_detector, train, held_out, test_set, stored, tmp_path):
    program = """
import sys
import numpy as np
import apood
store, *folders = sys.argv[1:]
for folder in folders:
    detector = apood.load(folder)
    np.save(folder + ".npy", detector.decision_function(apood.TokenStore(store)))
"""
    store = stored(test_set)
    detectors = {method: new_detector(method).fit(train).calibrate(held_out, 0.9) for method in METHODS}
    folders = {method: tmp_path / f"saved-{method}" for method in METHODS}
    for method, detector in detectors.items():
        detector.save(folders[method])
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    subprocess.run([sys.executable, "-c", program, store.folder, *folders.values()], check=True, env=environment)
    for method, detector in detectors.items():
        found = np.load(f"{folders[method]}.npy")
        assert np.array_equal(found, detector.decision_function(TokenStore(store.folder))), method


# what is wrong


def test_a_folder_that_is_no_artefact(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ArtefactError, match=r"is not a saved detector: it has no config\.json\.$"):
            apood.load(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file(saved, name):
    (saved / name).unlink()
    with pytest.raises(ArtefactError, match=rf"is (not a saved detector|incomplete): .*{name}"):
        apood.load(saved)


@pytest.mark.parametrize("keep", [0, 10, -1])
def test_truncated_tensors(saved, keep):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ArtefactError, match=r"is not the file that was saved: its sha256 differs"):
        apood.load(saved)


@pytest.mark.parametrize("position", [0, 9, -1])
def test_changed_tensors(saved, position):
    path = saved / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtefactError, match=r"is not the file that was saved: its sha256 differs"):
        apood.load(saved)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b"3", b"{}", b'{"schema": "1"}'])
def test_a_configuration_that_is_none(saved, content):
    (saved / "config.json").write_bytes(content)
    with pytest.raises(ArtefactError, match=r"config\.json is not the configuration of a detector"):
        apood.load(saved)


EDITS = {
    "newer schema": (lambda c: c.update(schema=2), "made by a newer apood: it has schema 2, this one reads up to 1"),
    "newer and unknown": (lambda c: (c.clear(), c.update(schema=7)), "made by a newer apood: it has schema 7"),
    "unknown method": (lambda c: c.update(method="magic"), "There is no method 'magic'"),
    "unknown parameter": (lambda c: c["parameters"].update(magic=1), "describes no detector of this apood: .*argument"),
    "no parameters": (lambda c: c.pop("parameters"), "no proper 'parameters'"),
    "parameters of a wrong kind": (lambda c: c.update(parameters=[1]), "no proper 'parameters'"),
    "learnt of a wrong kind": (lambda c: c.update(learnt=[1]), "no proper 'learnt'"),
    "something not learnt": (lambda c: c["learnt"].pop("dim_"), "is incomplete: it does not hold dim_"),
    "another shape": (
        lambda c: c["tensors"]["calibration_scores_"].update(shape=[59]),
        "do not have the names, shapes and dtypes",
    ),
    "another dtype": (
        lambda c: c["tensors"]["calibration_scores_"].update(dtype="torch.float16"),
        "do not have the names, shapes and dtypes",
    ),
    "another tensor": (lambda c: c["tensors"].update(more_={}), "do not have the names, shapes and dtypes"),
    "another hash": (lambda c: c.update(sha256="0" * 64), "its sha256 differs"),
}


@pytest.mark.parametrize(("change", "sentence"), EDITS.values(), ids=EDITS.keys())
def test_an_edited_configuration(saved, change, sentence):
    edit(saved, change)
    with pytest.raises(ArtefactError, match=sentence):
        apood.load(saved)


@pytest.mark.parametrize(
    ("method", "parameter", "value"),
    [("ap-ood", "beta", -1.0), ("knn", "k", 0), ("mahalanobis", "normalize", "magic")],
    indirect=["method"],
)
def test_parameters_that_fit_would_refuse(saved, parameter, value):
    edit(saved, lambda config: config["parameters"].update({parameter: value}))
    with pytest.raises(ArtefactError, match=f"describes no detector of this apood: {parameter} must "):
        apood.load(saved)


def test_everything_learnt_must_be_there(saved, fitted):
    config = json.loads((saved / "config.json").read_text())
    for key in config["learnt"].keys() & learnt(fitted).keys():
        (saved / "config.json").write_text(
            json.dumps(config | {"learnt": {k: v for k, v in config["learnt"].items() if k != key}})
        )
        with pytest.raises(ArtefactError, match=f"is incomplete: it does not hold {key}"):
            apood.load(saved)


# where it may be written


def foreign_folders(tmp_path):
    """A file, a folder of somebody else, a model with files of the same names, a detector with something beside it."""
    (tmp_path / "file").write_text("precious")
    for name, files in {
        "folder": {"precious.txt": "precious"},
        "model": {"config.json": '{"architectures": ["BertModel"]}', "model.safetensors": "precious"},
        "half": {"model.safetensors": "precious"},
    }.items():
        (tmp_path / name).mkdir()
        for file, content in files.items():
            (tmp_path / name / file).write_text(content)
    return [tmp_path / name for name in ("file", "folder", "model", "half")]


def content(folder):
    files = [folder] if folder.is_file() else sorted(folder.iterdir())
    return {path.name: path.read_bytes() for path in files}


def test_nothing_foreign_is_overwritten(fitted, saved, tmp_path):
    (saved / "notes.txt").write_text("precious")
    for place in [*foreign_folders(tmp_path), saved]:
        before = content(place)
        with pytest.raises(
            ArtefactError, match=r"exists and is not (just )?a saved detector.*; choose another folder\.$"
        ):
            fitted.save(place)
        assert content(place) == before


def test_an_empty_folder_and_an_old_detector_may_be_replaced(fitted, saved, tmp_path):
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", saved, tmp_path / "some" / "where" / "else"):
        fitted.save(place)
        assert not hasattr(apood.load(place), "threshold_")


def test_a_place_that_cannot_be_written(fitted, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtefactError, match=r"^The detector cannot be written to .*file/detector: .+\.$"):
        fitted.save(tmp_path / "file" / "detector")
