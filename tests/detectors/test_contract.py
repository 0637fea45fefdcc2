"""The contract of every registered method; a new method is tested here as soon as it has its line in the registry.

This file tests its class and parameters, fits, decisions and a new process; two other files test the data it takes and
what it refuses. Methods differ in `requires`, what they read (tokens or channels), and in `aux`, whether they learn
from outliers.
"""

import copy
import inspect
import json
import os
import random
import subprocess
import sys
import threading
from dataclasses import FrozenInstanceError, replace
from typing import Annotated, get_args, get_origin

import numpy as np
import pytest
import torch
from builders import side_channels
from comparisons import learnt, same_state, same_value
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from apood.decisions.conformal import conformal_threshold, score_tolerance
from apood.detectors.contract.artefact import load_detector
from apood.detectors.contract.base import AuxUse, Detector
from apood.detectors.contract.registry import METHODS, detector_class
from apood.detectors.knn import KNN
from apood.support.errors import InputError, NotCalibratedError

DIM = 8
CHANNELS = set(side_channels(1))
TOKENS_ALONE = {"tokens"}

# The class and its parameters.


def test_the_class_says_who_it_is(method):
    chosen = detector_class(method)
    assert issubclass(chosen, Detector) and chosen.name == method
    assert chosen.__doc__ and chosen.__doc__ != Detector.__doc__
    detector = chosen()
    assert isinstance(detector.requires, frozenset) and detector.aux in get_args(AuxUse)
    assert detector.requires and detector.requires <= CHANNELS | TOKENS_ALONE, "the data of these tests has it"


def test_the_constructor_only_stores(method):
    chosen = detector_class(method)
    detector = chosen()
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(chosen).parameters.items()
        if parameter.kind == parameter.POSITIONAL_OR_KEYWORD
    }
    assert detector.get_params() == defaults == vars(detector)


def test_every_learnt_tensor_has_its_shape_in_the_annotation(fitted):
    """Otherwise a saved detector with a tensor of another shape would be loaded."""
    annotations = [inspect.get_annotations(base) for base in type(fitted).__mro__]
    shapes = {key for own in annotations for key, annotation in own.items() if get_origin(annotation) is Annotated}
    assert {key for key, value in learnt(fitted).items() if torch.is_tensor(value)} <= shapes


def test_clone_and_set_params(fitted):
    twin = clone(fitted)
    assert type(twin) is type(fitted) and same_value(twin.get_params(), fitted.get_params()) and learnt(twin) == {}
    assert twin.set_params(**fitted.get_params()) is twin
    with pytest.raises(ValueError, match="Invalid parameter"):
        twin.set_params(no_such_parameter=1)


@pytest.mark.parametrize("name", ["ap-ood", "deep-svdd", "fusion"])
def test_a_seed_of_numpy_is_the_same_seed(new_detector, train, tmp_path, name):
    for kind in (int, np.int64, np.uint8):
        new_detector(name, seed=kind(3)).fit(train).save(tmp_path / kind.__name__)
    known, *others = (load_detector(tmp_path / kind).score_samples(train) for kind in ("int", "int64", "uint8"))
    assert all(np.array_equal(known, other) for other in others)


def test_settings_worth_trying_are_settings(new):
    for supervised in {"unused": [False], "optional": [False, True], "required": [True]}[new().aux]:
        space = new().hyperparameter_space(DIM, supervised=supervised)
        assert space and all(space.count(setting) == 1 for setting in space)
        for setting in space:
            assert json.loads(json.dumps(setting, allow_nan=False)) == setting, "it is written into reports"
            new().set_params(**setting).check_parameters()


def test_fit_returns_self_and_keeps_the_parameters(new, fit, train):
    detector = new()
    before = copy.deepcopy(detector.get_params())
    assert fit(detector, train) is detector
    assert same_value(detector.get_params(), before)
    assert learnt(detector) and vars(detector).keys() - {"_fitted_with"} == before.keys() | learnt(detector).keys()


def test_a_second_fit_forgets_the_first(new, fit, train, held_out, fitted, calibrated):
    assert same_state(fit(calibrated, held_out), fit(new(), held_out))
    assert not hasattr(calibrated, "threshold_")
    assert same_state(fit(calibrated, train), fitted)


def test_the_same_seed_gives_the_same_detector(new, fit, train, fitted):
    assert same_state(fit(new(), train), fitted)
    if "seed" in fitted.get_params():
        assert not same_state(fit(new(seed=fitted.get_params()["seed"] + 1), train), fitted)


def test_global_state_is_left_alone(new, fit, train, test_set):
    def state():
        return (
            torch.get_default_dtype(),
            torch.get_rng_state().tolist(),
            str(np.random.get_state()),
            random.getstate(),
            torch.get_num_threads(),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            np.geterr(),
        )

    before = state()
    fit(new(), train).calibrate(test_set, 0.5).predict(test_set)
    assert state() == before


def test_random_numbers_of_others_change_nothing(fitted, test_set):
    expected = fitted.score_samples(test_set)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        assert np.array_equal(fitted.score_samples(test_set), expected)


# Fit, calibrate, decide: in this order.

NEED_FIT = ("score_samples", "decision_function", "predict", "p_values", "select_ood", "calibrate", "save")
NEED_THRESHOLD = ("predict", "p_values", "select_ood")


def test_nothing_works_before_fit(new, test_set):
    for action in NEED_FIT:
        with pytest.raises(NotFittedError):
            getattr(new(), action)(test_set)


def test_a_fit_that_fails_leaves_nothing_behind(calibrated, fit, train, test_set, monkeypatch):
    def broken(*_):
        raise InputError("no")

    monkeypatch.setattr(type(calibrated), "_fit", broken)
    with pytest.raises(InputError, match=r"^no$"):
        fit(calibrated, train)
    for action in NEED_FIT:
        with pytest.raises(NotFittedError):
            getattr(calibrated, action)(test_set)


def test_decisions_need_calibration_and_say_so_before_the_work(fitted, method, test_set, monkeypatch):
    monkeypatch.setattr(type(fitted), "score_samples", lambda *_: pytest.fail("scored for nothing"))
    for action in NEED_THRESHOLD:
        with pytest.raises(NotCalibratedError, match=rf"{method} detector .*calibrate"):
            getattr(fitted, action)(test_set)


def test_without_a_threshold_the_decision_function_is_the_score(fitted, test_set):
    assert np.array_equal(fitted.decision_function(test_set), fitted.score_samples(test_set))


def test_calibration_refuses_what_cannot_work_before_it_scores(fitted, held_out):
    detector = copy.deepcopy(fitted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(fitted), "_score_source", lambda *_: pytest.fail("scored for nothing"))
        with pytest.raises(InputError, match=r"needs at least 19 calibration scores, got 18\.$"):
            detector.calibrate(held_out[:18])
        for accept in (0.0, 1.0, -1.0, 1.5, np.nan, "0.9", None):
            with pytest.raises(InputError, match=r"^accept must be a number strictly between 0 and 1"):
                detector.calibrate(held_out, accept)
    assert not hasattr(detector, "threshold_")
    assert detector.calibrate(held_out[:19]) is detector


def test_decisions_follow_from_scores(calibrated, held_out, test_set):
    scores, own = calibrated.score_samples(test_set), calibrated.score_samples(held_out)
    assert calibrated.accept_ == 0.9 and calibrated.threshold_ == conformal_threshold(own, 0.9)
    assert torch.equal(calibrated.calibration_scores_, torch.from_numpy(np.sort(own)))
    margin = calibrated.decision_function(test_set)
    assert np.array_equal(margin, scores - calibrated.threshold_)
    decisions = calibrated.predict(test_set)
    assert set(decisions) <= {1, -1} and np.array_equal(decisions == 1, margin >= 0)
    p = calibrated.p_values(test_set)
    assert np.array_equal(p, [(1 + (own - score_tolerance(own) <= score).sum()) / 61 for score in scores])
    assert np.array_equal(p <= 0.1 + 1e-12, decisions == -1)
    assert (calibrated.predict(held_out) == 1).mean() >= 0.9
    chosen = calibrated.select_ood(test_set, rate=0.2)
    assert chosen.dtype == bool and (not chosen.any() or p[chosen].max() <= p[~chosen].min(initial=1))


def test_copies_get_one_decision_alone_and_together(fitted, held_out):
    """30% of the calibration sequences are copies of one, whose score is the threshold."""
    copied = int(np.argsort(fitted.score_samples(held_out))[3])
    for dtype in (torch.float32, torch.float16):
        some = held_out if dtype == torch.float32 else replace(held_out, values=held_out.values.to(dtype))
        detector = copy.deepcopy(fitted).calibrate(some.select([*range(42), *[copied] * 18]), 0.8)
        kth = detector.threshold_ + score_tolerance(detector.calibration_scores_)
        assert kth == pytest.approx(detector.score_samples(some[copied : copied + 1])[0], rel=1e-3)
        batches = [[copied], [copied] * 2, [copied] * 10, [copied] * 70, [copied, 5], [*range(60), copied]]
        batches += [[copied, *range(first, 60)] for first in range(0, 60, 7)]
        p_values, decisions = set(), set()
        for indices in batches:
            at = np.array(indices) == copied
            batch = some.select(indices)
            p_values |= set(detector.p_values(batch)[at])
            decisions |= set(detector.predict(batch)[at])
            assert (detector.decision_function(batch)[at] >= 0).all()
        assert decisions == {1} and len(p_values) == 1


def test_a_calibration_is_replaced_in_one_step(calibrated, held_out, test_set):
    """Threads that decide while another one calibrates see one calibration or the other."""
    scores, parts = calibrated.score_samples(test_set), (held_out[:30], held_out[30:])
    known = {}
    for part, accept in zip(parts, (0.5, 0.9), strict=True):
        calibration = calibrated.calibrate(part, accept).calibration
        known[accept] = calibration.threshold, calibration.p_values(scores).tolist()
    with pytest.raises(FrozenInstanceError):
        calibrated.calibration.threshold = 0.0
    stop = threading.Event()

    def recalibrate():
        while not stop.is_set():
            for part, accept in zip(parts, (0.5, 0.9), strict=True):
                calibrated.calibrate(part, accept)

    thread = threading.Thread(target=recalibrate)
    thread.start()
    try:
        for _ in range(200):
            seen = calibrated.calibration
            assert known[seen.accept] == (seen.threshold, seen.p_values(scores).tolist())
    finally:
        stop.set()
        thread.join()


def test_a_parameter_that_changed_after_fit_is_named(fitted, test_set, held_out, tmp_path):
    values = {"members": [KNN()], "normalize": "pooled", "k": 2, "temperature": 3.0}
    for name in set(fitted.get_params(deep=False)) & set(values):
        detector = copy.deepcopy(fitted)
        before = getattr(detector, name)
        other = "tokens" if before == values[name] else values[name]
        scores = detector.score_samples(test_set)
        detector.set_params(**{name: other})
        for action, given in (("score_samples", test_set), ("calibrate", held_out), ("save", tmp_path / "detector")):
            with pytest.raises(InputError, match=rf"fitted with {name}=.*, and {name} is now .*fit it again"):
                getattr(detector, action)(given)
        assert np.array_equal(detector.set_params(**{name: before}).score_samples(test_set), scores)


def test_a_changed_parameter_of_a_member_is_not_saved(new_detector, train, test_set, tmp_path):
    """Copies of the members were fitted, so scores stay as they are, but the saved parameters would be wrong."""
    detector = new_detector("fusion", members=[KNN(), KNN(k=3)]).fit(train)
    scores = detector.score_samples(test_set)
    detector.members[0].k = 7
    assert np.array_equal(detector.score_samples(test_set), scores)
    with pytest.raises(InputError, match=r"fitted with members=.*, and members is now .*fit it again"):
        detector.save(tmp_path / "detector")
    detector.members[0].k = 5
    detector.save(tmp_path / "detector")


def test_seed_and_device_may_change_after_fit(fitted, test_set):
    free = {"seed": 7, "device": "cpu"}
    detector = copy.deepcopy(fitted)
    detector.set_params(**{name: value for name, value in free.items() if name in detector.get_params()})
    assert np.array_equal(detector.score_samples(test_set), fitted.score_samples(test_set))


# Saving.


def test_every_method_scores_the_same_in_a_new_process(new_detector, fit, train, held_out, test_set, stored, tmp_path):
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
    detectors = {method: fit(new_detector(method), train).calibrate(held_out, 0.9) for method in METHODS}
    folders = {method: tmp_path / f"saved-{method}" for method in METHODS}
    for method, detector in detectors.items():
        detector.save(folders[method])
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    subprocess.run([sys.executable, "-c", program, store.folder, *folders.values()], check=True, env=environment)
    for method, detector in detectors.items():
        found = np.load(f"{folders[method]}.npy")
        assert np.array_equal(found, detector.decision_function(store)), method
