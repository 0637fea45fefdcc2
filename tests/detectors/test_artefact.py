"""Saved detectors: complete, the same everywhere, and refused if anything is wrong with them.

What depends on the learnt attributes is tested with every method. All else is one code path for all methods. It is
tested with a plain detector and with one that is made of others.
"""

import hashlib
import json
import multiprocessing
import os
import resource
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch
from comparisons import learnt
from processes import context
from sklearn.exceptions import NotFittedError

import apood
from apood.decisions.conformal import Calibration
from apood.detectors.contract.artefact import refuse_foreign
from apood.detectors.fusion import Fusion
from apood.detectors.mahalanobis import Mahalanobis
from apood.support.errors import ArtefactError

ONE = pytest.mark.parametrize("method", ["knn"], indirect=True)
PLAIN_AND_FUSED = pytest.mark.parametrize("method", ["knn", "fusion"], indirect=True)


@pytest.fixture
def saved(calibrated, tmp_path):
    """Save a calibrated detector of the method in turn, and return its folder."""
    calibrated.save(tmp_path / "detector")
    return tmp_path / "detector"


def edit(folder, change):
    """Change the configuration of a detector, and its hash."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    del config["config_sha256"]
    change(config)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({"config_sha256": digest} | config))


def assert_same_detector(found, expected):
    """Compare the parameters and all learnt attributes, those of members included."""
    assert type(found) is type(expected)
    for own, others in ((found.get_params(), expected.get_params()), (learnt(found), learnt(expected))):
        assert own.keys() == others.keys()
        for key, value in others.items():
            assert type(own[key]) is type(value), key
            if key in ("members", "members_") and value is not None:
                for pair in zip(own[key], value, strict=True):
                    assert_same_detector(*pair)
            else:
                assert torch.equal(own[key], value) if torch.is_tensor(value) else own[key] == value, key


def test_a_saved_detector_comes_back_as_it_was(calibrated, saved, test_set):
    loaded = apood.load(saved)
    assert_same_detector(loaded, calibrated)
    for action in ("score_samples", "decision_function", "predict", "p_values"):
        assert np.array_equal(getattr(loaded, action)(test_set), getattr(calibrated, action)(test_set))


def test_a_loaded_detector_lives_on(saved, fitted, fit, train, held_out, test_set):
    loaded = apood.load(str(saved))
    loaded.calibrate(held_out[:30], 0.8).save(saved)  # over itself
    again = apood.load(saved)
    assert again.accept_ == 0.8 and len(again.calibration_scores_) == 30
    assert np.array_equal(fit(again, train).score_samples(test_set), fitted.score_samples(test_set))


@PLAIN_AND_FUSED
def test_an_artefact_is_two_files_without_pickle(saved):
    folders = [saved, *saved.glob("members/*")]  # a fusion has those of its members
    for folder in folders:
        assert {path.name for path in folder.iterdir()} - {"members"} == {"config.json", "model.safetensors"}
    assert len([path for path in saved.rglob("*") if path.is_file()]) == 2 * len(folders)
    config = json.loads((saved / "config.json").read_text())
    assert config["schema"] == 1 and config["versions"]["apood"] == apood.__version__
    assert [path.name for path in saved.parent.iterdir()] == ["detector"], "no temporary folder is left"


@pytest.mark.parametrize("umask", [0o022, 0o077])
@PLAIN_AND_FUSED
def test_whoever_may_read_one_file_may_read_all(calibrated, tmp_path, umask):
    before = os.umask(umask)
    try:
        calibrated.save(tmp_path / "detector")
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "detector").rglob("*") if path.is_file()]
    assert files and {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~umask}


@ONE
def test_saving_needs_a_fit(new, tmp_path):
    with pytest.raises(NotFittedError):
        new().save(tmp_path / "detector")
    assert not any(tmp_path.iterdir())


@PLAIN_AND_FUSED
def test_an_infinite_threshold_survives(calibrated, tmp_path):
    calibrated._calibration = Calibration.from_scores([-np.inf] * 10 + [1.0] * 10, 0.9)  # an older apood allowed it
    calibrated.save(tmp_path / "detector")
    assert apood.load(tmp_path / "detector").threshold_ == -np.inf


BAD_CALIBRATIONS = {
    "NaN": (lambda c: c["learnt"].update(threshold_={"float": "nan"}), "threshold_ is nan, but"),
    "another threshold": (lambda c: c["learnt"].update(threshold_=-1e9), r"threshold_ is -1e\+09, but"),
    "no number": (lambda c: c["learnt"].update(threshold_="high"), "threshold_ must be numbers"),
    "another accept rate": (lambda c: c["learnt"].update(accept_=0.5), "threshold_ is .*, but"),
    "no accept rate": (lambda c: c["learnt"].update(accept_=1.5), "accept must be a number strictly between 0 and 1"),
    "an accept rate that needs more": (lambda c: c["learnt"].update(accept_=0.999), "needs at least 999"),
    "incomplete": (lambda c: c["learnt"].pop("threshold_"), "does not hold threshold_"),
}


@ONE
@pytest.mark.parametrize(("change", "sentence"), BAD_CALIBRATIONS.values(), ids=BAD_CALIBRATIONS.keys())
def test_a_calibration_that_contradicts_itself_is_refused(saved, change, sentence):
    edit(saved, change)
    with pytest.raises(ArtefactError, match=sentence):
        apood.load(saved)


@ONE
@pytest.mark.parametrize("scores", [[[0.0] * 60], [np.nan] * 60, []], ids=["a matrix", "NaN", "none"])
def test_calibration_scores_that_are_none_are_refused(calibrated, scores, tmp_path):
    calibration = calibrated.calibration
    calibrated._calibration = replace(calibration, scores=np.array(scores))
    with pytest.raises(ArtefactError, match=r"calibration in it is not valid: .* calibration scores"):
        calibrated.save(tmp_path / "detector")


@ONE
def test_the_threshold_of_an_older_artefact_gets_the_tolerance(calibrated, saved):
    kth = float(calibrated.calibration_scores_[5])
    assert calibrated.threshold_ < kth
    edit(saved, lambda config: config["learnt"].update(threshold_=kth))
    assert apood.load(saved).threshold_ == calibrated.threshold_


def test_numbers_of_numpy_survive_as_parameters(new_detector, train, test_set, tmp_path):
    detector = new_detector("knn", k=np.int64(3)).fit(train)
    detector.save(tmp_path / "knn")
    assert np.array_equal(apood.load(tmp_path / "knn").score_samples(test_set), detector.score_samples(test_set))
    detector = new_detector("mahalanobis", eigenvalue_floor=np.float32(0.5)).fit(train)
    detector.save(tmp_path / "mahalanobis")
    loaded = apood.load(tmp_path / "mahalanobis")
    assert np.array_equal(loaded.score_samples(test_set), detector.score_samples(test_set))


@ONE
@pytest.mark.parametrize("fact", [{1, 2}, float("nan")], ids=["a set", "NaN"])
def test_facts_that_are_no_json_are_refused(fitted, saved, fact):
    before = (saved / "config.json").read_bytes()
    with pytest.raises(ArtefactError, match=r"is not saved, for it could not be loaded: .* JSON"):
        fitted.save(saved, facts={"about": fact})
    assert (saved / "config.json").read_bytes() == before


@PLAIN_AND_FUSED
def test_the_encoder_is_remembered(new, fit, train, stored, tmp_path):
    encoder = {"model": "a/model", "layer": -1, "mode": None, "special": True}
    fit(new(), stored(train, encoder)).save(tmp_path / "detector")
    assert apood.load(tmp_path / "detector").encoder_ == encoder


# What is refused.


def test_a_folder_that_is_no_artefact(tmp_path):
    with pytest.raises(ArtefactError, match=r"is not a saved detector: it has no config\.json\.$"):
        apood.load(tmp_path)
    with pytest.raises(ArtefactError, match=r"There is no detector '.*/nowhere': nothing is at that path\.$"):
        apood.load(tmp_path / "nowhere")


@ONE
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file(saved, name):
    (saved / name).unlink()
    with pytest.raises(ArtefactError, match=rf"is (not a saved detector|incomplete): .*{name}"):
        apood.load(saved)


@ONE
@pytest.mark.parametrize("keep", [0, 10, -1])
def test_truncated_tensors(saved, keep):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ArtefactError, match="sha256 differs"):
        apood.load(saved)


@ONE
@pytest.mark.parametrize("position", [0, 9, -1])
def test_changed_tensors(saved, position):
    path = saved / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtefactError, match="sha256 differs"):
        apood.load(saved)


@ONE
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b"3", b"{}", b'{"schema": "1"}'])
def test_a_configuration_that_is_none(saved, content):
    (saved / "config.json").write_bytes(content)
    with pytest.raises(ArtefactError, match=r"config\.json is not the configuration"):
        apood.load(saved)


EDITS = {
    "newer schema": (lambda c: c.update(schema=2), "newer apood.*schema 2.*up to 1"),
    "newer and unknown": (lambda c: (c.clear(), c.update(schema=7)), "newer apood.*schema 7"),
    "unknown method": (lambda c: c.update(method="magic"), "There is no method 'magic'"),
    "unknown parameter": (lambda c: c["parameters"].update(magic=1), "describes no detector of this apood: .*argument"),
    "no parameters": (lambda c: c.pop("parameters"), "no proper 'parameters'"),
    "parameters of a wrong kind": (lambda c: c.update(parameters=[1]), "no proper 'parameters'"),
    "learnt of a wrong kind": (lambda c: c.update(learnt=[1]), "no proper 'learnt'"),
    "something not learnt": (lambda c: c["learnt"].pop("dim_"), "incomplete.*dim_"),
    "an impossible shape": (
        lambda c: c["tensors"]["calibration_scores_"].update(shape=[1e308, 1e308]),
        "far larger|names, shapes and dtypes",
    ),
    "a shape of texts": (
        lambda c: c["tensors"]["calibration_scores_"].update(shape=[[1], 10**15]),
        "names, shapes and dtypes",
    ),
    "a number beyond those of floats": (
        lambda c: c["parameters"].update({key: {"float": 10**400} for key in c["parameters"]}),
        "describes no detector",
    ),
    "a value that is nested deeply": (
        lambda c: c["parameters"].update(dict.fromkeys(c["parameters"], json.loads("[" * 800 + "]" * 800))),
        "describes no detector",
    ),
    "another shape": (
        lambda c: c["tensors"]["calibration_scores_"].update(shape=[59]),
        "names, shapes and dtypes",
    ),
    "another dtype": (
        lambda c: c["tensors"]["calibration_scores_"].update(dtype="torch.float16"),
        "names, shapes and dtypes",
    ),
    "another tensor": (lambda c: c["tensors"].update(more_={}), "names, shapes and dtypes"),
    "another hash": (lambda c: c.update(sha256="0" * 64), "its sha256 differs"),
    "another hash of its own": (lambda c: c.update(config_sha256="0" * 64), "is not the one that was saved"),
    "no hash of its own": (lambda c: c.update(config_sha256=None), "no proper 'config_sha256'"),
    "schema of no version": (lambda c: c.update(schema=0), "no proper 'schema'"),
    "negative schema": (lambda c: c.update(schema=-1), "no proper 'schema'"),
    "schema of a wrong kind": (lambda c: c.update(schema=True), "no proper 'schema'"),
    "schema of a fraction": (lambda c: c.update(schema=1.0), "no proper 'schema'"),
    "a method of the class": (lambda c: c["learnt"].update(predict=1), "holds 'predict', which .+ does not learn"),
    "the class itself": (lambda c: c["learnt"].update(__class__=1), "holds '__class__', which .+ does not learn"),
    "something unknown": (lambda c: c["learnt"].update(magic_=1), "holds 'magic_', which .+ does not learn"),
}


@ONE
@pytest.mark.parametrize(("change", "sentence"), EDITS.values(), ids=EDITS.keys())
def test_an_edited_configuration(saved, change, sentence):
    edit(saved, change)
    with pytest.raises(ArtefactError, match=sentence):
        apood.load(saved)


@ONE
@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["learnt"].update(threshold_=-1e9),
        lambda c: c["learnt"].update(encoder_={"model": "another"}),
        lambda c: c["versions"].update(apood="0.0.1"),
        lambda c: c.update(note="hello"),
        lambda c: c.pop("versions"),
    ],
)
def test_a_configuration_edited_by_hand(saved, change):
    path = saved / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(config.items()))))
    apood.load(saved)  # the order of keys means nothing
    change(config)
    path.write_text(json.dumps(config))
    with pytest.raises(ArtefactError, match=r"config\.json .*config_sha256 differs"):
        apood.load(saved)


@pytest.mark.parametrize(
    ("method", "parameter", "value"),
    [("ap-ood", "beta", -1.0), ("knn", "k", 0), ("mahalanobis", "normalize", "magic")],
    indirect=["method"],
)
def test_parameters_that_fit_would_refuse(saved, parameter, value):
    edit(saved, lambda config: config["parameters"].update({parameter: value}))
    with pytest.raises(ArtefactError, match=f"{parameter} must "):
        apood.load(saved)


# the first versions did not learn them
LATER = {"score_", "skips_first_", "skips_last_", "fit_warnings_", "sequences_"}


def test_everything_learnt_must_be_there(saved, fitted):
    config = json.loads((saved / "config.json").read_text())
    for key in config["learnt"].keys() & learnt(fitted).keys() - LATER:
        (saved / "config.json").write_text(json.dumps(config))
        edit(saved, lambda config, key=key: config["learnt"].pop(key))
        with pytest.raises(ArtefactError, match=f"incomplete.*{key}"):
            apood.load(saved)


def test_what_the_first_versions_did_not_learn_may_be_missing(saved, fitted, test_set, tmp_path):
    expected = fitted.score_samples(test_set)
    edit(saved, lambda config: [config["learnt"].pop(key, None) for key in LATER])
    old = apood.load(saved)
    assert not vars(old).keys() & LATER and not old.skips_first_ and not old.skips_last_
    assert np.array_equal(old.score_samples(test_set), expected)
    old.save(tmp_path / "again")
    assert np.array_equal(apood.load(tmp_path / "again").score_samples(test_set), expected)


# Where a detector may be written.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dim_", "8"),
        ("dim_", True),
        ("dim_", 7),
        ("dim_", None),
        ("threshold_", "0"),
        ("threshold_", {"float": "nan"}),
        ("threshold_", {"float": "x"}),
        ("threshold_", [1.0]),
        ("accept_", None),
        ("encoder_", 3),
        ("encoder_", [[]]),
        ("fitted_on_", 5),
    ],
)
@ONE
def test_learnt_values_of_another_type_are_refused(saved, name, value):
    edit(saved, lambda config: config["learnt"].update({name: value}))
    with pytest.raises(ArtefactError, match="detector"):
        apood.load(saved)


def replace_tensors(folder, change):
    """Change the tensors of a detector, and all hashes."""
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    safetensors.torch.save_file(tensors, path)
    facts = {key: {"shape": list(t.shape), "dtype": str(t.dtype)} for key, t in tensors.items()}
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    edit(folder, lambda config: config.update(tensors=facts, sha256=digest))


def test_learnt_tensors_of_another_shape_are_refused(saved):
    for name in sorted(safetensors.torch.load_file(saved / "model.safetensors")):
        kept = {path: path.read_bytes() for path in saved.rglob("*") if path.is_file()}
        # the curve of a training has no step if its first loss was not finite
        emptied = [] if name == "training_curve_" else [lambda t: t.flatten()[:0]]
        for change in (lambda t: t[None], lambda t: t.bool(), *emptied):
            replace_tensors(
                saved, lambda tensors, name=name, change=change: tensors.update({name: change(tensors[name])})
            )
            with pytest.raises(ArtefactError, match=str(saved)):
                apood.load(saved)
            for path, before in kept.items():
                path.write_bytes(before)
    apood.load(saved)


@pytest.mark.parametrize("method", ["mahalanobis", "ap-ood", "deep-svdd"], indirect=True)
def test_learnt_tensors_of_another_dimension_are_refused(saved):
    edit(saved, lambda config: config["learnt"].update(dim_=9))
    with pytest.raises(ArtefactError, match="D is 9"):
        apood.load(saved)


@ONE
def test_a_huge_file_is_refused_before_it_fills_memory(saved):
    with (saved / "model.safetensors").open("r+b") as file:
        file.truncate(1 << 36)  # it takes no space on the disk
    with pytest.raises(ArtefactError, match="far larger than its tensors"):
        apood.load(saved)


@ONE
def test_a_threshold_needs_its_scores(saved):
    edit(saved, lambda config: config["learnt"].pop("accept_"))
    with pytest.raises(ArtefactError, match="accept_"):
        apood.load(saved)


def foreign_folders(tmp_path):
    """Make a file, a foreign folder, a model with files of the same names, and half a detector."""
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
    files = [folder] if folder.is_file() else [path for path in folder.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in files}


@PLAIN_AND_FUSED
def test_nothing_foreign_is_overwritten(fitted, saved, tmp_path):
    (saved / "notes.txt").write_text("precious")
    for place in [*foreign_folders(tmp_path), saved]:
        before = content(place)
        with pytest.raises(ArtefactError, match=r"not (just )?a saved detector.*another folder"):
            fitted.save(place)
        assert content(place) == before


@PLAIN_AND_FUSED
def test_an_empty_folder_and_an_old_detector_may_be_replaced(fitted, saved, tmp_path):
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", saved, tmp_path / "some" / "where" / "else"):
        fitted.save(place)
        assert not hasattr(apood.load(place), "threshold_")


@PLAIN_AND_FUSED
def test_what_may_be_replaced_can_be_asked_before(saved, tmp_path):
    for place in (saved, tmp_path / "nowhere"):
        refuse_foreign(place)
    for place in foreign_folders(tmp_path):
        with pytest.raises(ArtefactError, match="another folder"):
            refuse_foreign(place)


@ONE
@pytest.mark.parametrize("place", ["file/detector", "/proc/apood/detector"])
def test_a_place_that_cannot_be_written(fitted, tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtefactError, match=rf"^The detector cannot be written to .*{place}: .+\.$"):
        fitted.save(tmp_path / place)


# What a full disk or a kill leaves.


def _save_on_a_full_disk(sender, source, folder, limit):
    detector = apood.load(source)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        detector.save(folder)
    except ArtefactError as error:
        sender.send(str(error))


@pytest.mark.parametrize("limit", [400, 100])
def test_a_full_disk_keeps_the_detector_before(new_detector, train, test_set, tmp_path, limit):
    new_detector("mahalanobis").fit(train).save(tmp_path / "source")
    before = new_detector("length").fit(train)
    before.save(tmp_path / "detector")
    receiver, sender = context.Pipe(duplex=False)
    arguments = (sender, tmp_path / "source", tmp_path / "detector", limit)
    process = context.Process(target=_save_on_a_full_disk, args=arguments)
    process.start()
    sender.close()
    sentence = receiver.recv()
    process.join()
    assert sentence.startswith(f"The detector cannot be written to {tmp_path / 'detector'}: ")
    assert "File too large" in sentence
    assert sorted(path.name for path in tmp_path.iterdir()) == ["detector", "source"]
    assert np.array_equal(apood.load(tmp_path / "detector").score_samples(test_set), before.score_samples(test_set))


def _save_and_die(source, folder, operation):
    """Save, and kill the process right before its `operation`-th file operation on the folder and its neighbours."""
    detector = apood.load(source)
    seen = 0

    def count_operations(event, arguments):
        nonlocal seen
        kinds = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")
        # files that rmtree deletes are named relative to their folder
        if event in kinds and (str(folder) in str(arguments[0]) or event == "os.remove"):
            seen += 1
            if seen == operation:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count_operations)
    detector.save(folder)


@pytest.mark.parametrize("new", [Mahalanobis(), Fusion([Mahalanobis()])], ids=str)
def test_a_save_killed_anywhere_leaves_the_old_or_the_new_detector(new, new_detector, train, tmp_path):
    new.fit(train).save(tmp_path / "source")
    old = new_detector("length").fit(train)
    names = []
    for operation in range(1, 90):
        folder = tmp_path / f"{operation}" / "detector"
        old.save(folder)
        process = context.Process(target=_save_and_die, args=(tmp_path / "source", folder, operation))
        process.start()
        process.join()
        names.append(apood.load(folder).name)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        old.save(folder)
        assert apood.load(folder).name == "length"
    assert process.exitcode == 0
    assert set(names) == {"length", new.name} and names == sorted(names, key=new.name.__eq__), "old until it is new"


def _save_forever(detectors, folder, stop):
    while not stop.is_set():
        for detector in detectors:
            detector.save(folder)


def test_a_load_beside_savers_is_one_of_their_detectors(train, held_out, tmp_path):
    """Threshold and tensors belong together, although two processes replace the folder all the time."""
    first = Mahalanobis().fit(train).calibrate(held_out)
    second = Mahalanobis(normalize="pooled").fit(train).calibrate(held_out, accept=0.5)
    allowed = {(each.normalize, each.threshold_, float(each.mean_.sum())) for each in (first, second)}
    forks = multiprocessing.get_context("fork")
    stop = forks.Event()
    first.save(tmp_path / "detector")
    savers = [forks.Process(target=_save_forever, args=([first, second], tmp_path / "detector", stop)) for _ in "12"]
    for saver in savers:
        saver.start()
    try:
        for _ in range(300):
            loaded = apood.load(tmp_path / "detector")
            assert (loaded.normalize, loaded.threshold_, float(loaded.mean_.sum())) in allowed
    finally:
        stop.set()
        for saver in savers:
            saver.join()
    assert [saver.exitcode for saver in savers] == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["detector"]
