"""Fits and scores that are kept: done once, whatever is asked again, and made anew when they are not whole."""

import json
import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from builders import correlated_sequences
from processes import context

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.contract.artefact import load_detector
from apood.detectors.contract.base import Detector
from apood.detectors.contract.registry import detector_class
from apood.detectors.fusion import Fusion
from apood.detectors.knn import KNN
from apood.detectors.mahalanobis import Mahalanobis
from apood.evaluation.fit_cache import CachedFit, _begin
from apood.fitting.optimise import Checkpoint
from apood.support.errors import ArtefactError, DivergedWarning, FitWarning, InputError
from apood.tokens.source import Subset

TRAIN = correlated_sequences(60)
AUX = correlated_sequences(20, seed=5, shift=3.0)
SETS = {"ID": correlated_sequences(15, seed=1), "far": correlated_sequences(10, seed=2, shift=4.0)}


def run(detector, train, aux, sets, cache):
    """Fit and score, or read what is in the cache: the scores, the seconds of scoring, and the facts of the fit."""
    fit = CachedFit(detector, train, aux, cache)
    scored = {name: fit.score(source) for name, source in sets.items()}
    seconds = {name: own for name, (_, own) in scored.items()}
    return SimpleNamespace(
        scores={name: own for name, (own, _) in scored.items()}, seconds=seconds, fit=fit.read_facts()
    )


class Work:
    """What was really fitted and scored."""

    def __init__(self):
        self.fits, self.scored = [], []

    def done(self):
        done = self.fits, self.scored
        self.fits, self.scored = [], []
        return done


@pytest.fixture
def work(monkeypatch):
    counted = Work()
    for kind in (APOOD, KNN, Mahalanobis):

        def fit(self, *arguments, original=kind._fit):
            counted.fits.append(self.name)
            original(self, *arguments)

        monkeypatch.setattr(kind, "_fit", fit)
    score = Detector.score_samples

    def score_samples(self, tokens):
        counted.scored.append(len(tokens))
        return score(self, tokens)

    monkeypatch.setattr(Detector, "score_samples", score_samples)
    return counted


def same_scores(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def entry_of(cache):
    (entry,) = cache.iterdir()
    return entry


def test_a_run_is_a_fit_and_its_scores(tmp_path):
    done = run(KNN(k=2), TRAIN, None, SETS, tmp_path)
    direct = KNN(k=2).fit(TRAIN)
    assert same_scores(done.scores, {name: direct.score_samples(source) for name, source in SETS.items()})
    assert done.fit["seconds"] > 0 and min(done.seconds.values()) > 0 and done.fit["warnings"] == []
    saved = entry_of(tmp_path) / "detector"
    assert done.fit["bytes"] == sum(file.stat().st_size for file in saved.iterdir())
    assert load_detector(saved).get_params() == KNN(k=2).get_params()


def test_the_detector_that_is_given_stays_as_it_is(tmp_path):
    detector = Mahalanobis()
    run(detector, TRAIN, None, SETS, tmp_path)
    assert not hasattr(detector, "dim_")


def test_nothing_is_done_twice(work, tmp_path):
    first = run(KNN(), TRAIN, None, SETS, tmp_path)
    assert work.done() == (["knn"], [15, 10])
    second = run(KNN(), TRAIN, None, SETS, tmp_path)
    assert work.done() == ([], [])
    assert same_scores(first.scores, second.scores) and (first.seconds, first.fit) == (second.seconds, second.fit)


def test_equal_fits_that_are_asked_for_at_once_are_done_once(tmp_path, monkeypatch):
    fits, found = [], []
    second = threading.Thread(target=lambda: found.append(run(KNN(), TRAIN, None, SETS, tmp_path)))

    def fit(self, *arguments, original=KNN._fit):
        fits.append(self.name)
        if len(fits) == 1:
            second.start()
            second.join(0.5)  # it comes to its fit in less, unless it waits for this one
        original(self, *arguments)

    monkeypatch.setattr(KNN, "_fit", fit)
    first = run(KNN(), TRAIN, None, SETS, tmp_path)
    second.join()
    assert fits == ["knn"] and same_scores(first.scores, found[0].scores)


def test_a_new_set_is_only_scored(work, tmp_path):
    run(KNN(), TRAIN, None, SETS, tmp_path)
    work.done()
    more = run(KNN(), TRAIN, None, {**SETS, "near": correlated_sequences(7, seed=3)}, tmp_path)
    assert work.done() == ([], [7]) and list(more.scores) == ["ID", "far", "near"]


def test_names_of_sets_do_not_matter(work, tmp_path):
    run(KNN(), TRAIN, None, SETS, tmp_path)
    work.done()
    renamed = run(KNN(), TRAIN, None, {"other": SETS["far"]}, tmp_path)
    assert work.done() == ([], []) and len(renamed.scores["other"]) == 10


def test_whatever_else_differs_is_another_fit(work, tmp_path):
    small = APOOD(steps=2, heads=2)
    run(small, TRAIN, None, {}, tmp_path)
    others = [
        (APOOD(steps=2, heads=3), TRAIN, None),
        (APOOD(steps=2, heads=2, seed=1), TRAIN, None),
        (small, Subset(TRAIN, slice(0, 59)), None),
        (small, TRAIN, AUX),
        (small, TRAIN, Subset(AUX, slice(0, 19))),
        (KNN(), TRAIN, None),
    ]
    for detector, train, aux in others:
        run(detector, train, aux, {}, tmp_path)
    assert work.done() == (["ap-ood"] * 6 + ["knn"], [])
    assert len(list(tmp_path.iterdir())) == 7


def test_another_version_of_apood_fits_anew(work, tmp_path, monkeypatch):
    run(KNN(), TRAIN, None, {}, tmp_path)
    monkeypatch.setattr("apood.evaluation.fit_cache.__version__", "99")
    run(KNN(), TRAIN, None, {}, tmp_path)
    assert work.done()[0] == ["knn", "knn"]


def test_numbers_of_numpy_are_numbers(work, tmp_path):
    run(KNN(k=3), TRAIN, None, {}, tmp_path)
    run(KNN(k=np.int64(3)), TRAIN, None, {}, tmp_path)
    assert work.done()[0] == ["knn"]


def test_parameters_that_are_no_plain_values_are_refused(tmp_path):
    class Odd(KNN):
        def check_parameters(self):
            pass

    with pytest.raises(InputError, match=r"Generator.*not a plain value"):
        run(Odd(k=torch.Generator()), TRAIN, None, {}, tmp_path)


def test_bad_parameters_are_refused_before_anything_is_made(tmp_path):
    with pytest.raises(InputError, match="k must be at least 1"):
        run(KNN(k=0), TRAIN, None, SETS, tmp_path)
    assert not list(tmp_path.iterdir())


def test_other_code_fits_anew(work, tmp_path, monkeypatch):
    """The version stays the same between commits, and a recipe's defaults may not."""
    run(KNN(), TRAIN, None, {}, tmp_path)
    monkeypatch.setattr("apood.evaluation.fit_cache.source_digest", lambda: "other code")
    run(KNN(), TRAIN, None, {}, tmp_path)
    assert work.done()[0] == ["knn", "knn"]


OWN = """
from apood import KNN
from own_mixin import Mixin

class Base(Mixin, KNN):
    name = "base"
"""
MIXIN = """
class Mixin:
    pass
"""
DERIVED = """
from own_base import Base

class Own(Base):
    name = "own"
"""


@pytest.mark.parametrize("file", ["own_mixin.py", "own_base.py", "own_derived.py"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_change_of_code_from_elsewhere_makes_a_new_fit(tmp_path, monkeypatch, file, inside):
    monkeypatch.syspath_prepend(tmp_path)
    for name, content in (("own_mixin.py", MIXIN), ("own_base.py", OWN), ("own_derived.py", DERIVED)):
        (tmp_path / name).write_text(content)
    own = detector_class("own_derived:Own")()
    detector = Fusion([own, KNN()]) if inside else own
    before = CachedFit(detector, TRAIN, None, tmp_path / "cache").folder
    with (tmp_path / file).open("a") as code:
        code.write("# another method\n")
    try:
        assert CachedFit(detector, TRAIN, None, tmp_path / "cache").folder != before
    finally:
        for module in ("own_mixin", "own_base", "own_derived"):
            sys.modules.pop(module)


class Nearest(KNN):
    """A subclass that has no name of its own."""

    def _score(self, tokens):
        return super()._score(tokens) + 1


def test_a_subclass_is_never_taken_for_its_base(tmp_path):
    for _ in range(2):
        assert type(CachedFit(Nearest(), TRAIN, None, tmp_path).fit_or_load()) is Nearest
    first = run(Nearest(), TRAIN, None, {}, tmp_path)
    again = run(Nearest(), TRAIN, None, SETS, tmp_path)
    direct = KNN().fit(TRAIN)
    assert first.scores == {} and np.array_equal(again.scores["far"], direct.score_samples(SETS["far"]) + 1)


@pytest.mark.parametrize("content", [b"{", b"[1]", b'{"seconds": "1"}', None])
def test_half_a_fit_is_made_anew(work, tmp_path, content):
    first = run(KNN(), TRAIN, None, SETS, tmp_path)
    facts = entry_of(tmp_path) / "fit.json"
    facts.unlink() if content is None else facts.write_bytes(content)
    work.done()
    again = run(KNN(), TRAIN, None, SETS, tmp_path)
    assert work.done() == (["knn"], [])  # the scores are whole
    assert same_scores(first.scores, again.scores) and set(json.loads(facts.read_text())) == {
        "seconds",
        "bytes",
        "warnings",
        "diverged",
    }


def test_a_detector_that_cannot_be_read_is_fitted_anew(work, tmp_path):
    run(KNN(), TRAIN, None, {}, tmp_path)
    detector = entry_of(tmp_path) / "detector"
    (detector / "model.safetensors").write_bytes(b"something else")
    (detector / "stranger.txt").write_text("and more")
    work.done()
    run(KNN(), TRAIN, None, SETS, tmp_path)
    assert work.done() == (["knn"], [15, 10])
    load_detector(detector)


def truncate(file):
    file.write_bytes(file.read_bytes()[:-3])


def swap(file):
    """The scores of the other set."""
    (other,) = [path for path in file.parent.glob("scores-*") if path != file]
    file.write_bytes(other.read_bytes())


def flip(file):
    """One bit of a score."""
    file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1]))


@pytest.mark.parametrize("spoil", [truncate, swap, flip, Path.unlink])
def test_scores_that_are_not_whole_are_made_anew(work, tmp_path, spoil):
    first = run(KNN(), TRAIN, None, SETS, tmp_path)
    spoil(min(entry_of(tmp_path).glob("scores-*")))
    work.done()
    again = run(KNN(), TRAIN, None, SETS, tmp_path)
    fits, scored = work.done()
    assert fits == [] and len(scored) == 1
    assert same_scores(first.scores, again.scores)


def test_an_interrupted_fit_goes_on(tmp_path, monkeypatch):
    """Ctrl-C after the 13th step; the fit that follows begins there and ends as if nothing had happened."""
    detector = APOOD(steps=20, heads=4)
    whole = run(detector, TRAIN, AUX, SETS, tmp_path / "whole")
    save = Checkpoint.save_if_due
    saved = []

    def save_and_stop(self, run_, step, tensors):
        save(self, run_, step, tensors)
        saved.append(step)
        if len(saved) == 13:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "is_due", lambda _self: True)
    monkeypatch.setattr(Checkpoint, "save_if_due", save_and_stop)
    with pytest.raises(KeyboardInterrupt):
        run(detector, TRAIN, AUX, SETS, tmp_path / "cut")
    entry = entry_of(tmp_path / "cut")
    assert {path.name for path in entry.iterdir()} == {"fit.checkpoint", "begun.json"}

    again = run(detector, TRAIN, AUX, SETS, tmp_path / "cut")
    assert len(saved) <= 20 + 1 and same_scores(again.scores, whole.scores)
    assert {path.name.partition("-")[0] for path in entry.iterdir()} == {"detector", "fit.json", "scores"}


def test_a_checkpoint_that_cannot_be_read_is_thrown_away(tmp_path):
    detector = APOOD(steps=2, heads=2)
    whole = run(detector, TRAIN, None, SETS, tmp_path / "whole")
    entry = tmp_path / "cut" / entry_of(tmp_path / "whole").name
    entry.mkdir(parents=True)
    (entry / "fit.checkpoint").write_bytes(b"half a check")
    assert same_scores(run(detector, TRAIN, None, SETS, tmp_path / "cut").scores, whole.scores)


def fit_until_killed(cache):
    """Dies after the second checkpoint, and leaves no chance to note anything."""
    save = Checkpoint.save_if_due

    def save_and_die(self, run_, step, tensors):
        save(self, run_, step, tensors)
        if step == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    Checkpoint.is_due = lambda _self: True
    Checkpoint.save_if_due = save_and_die
    run(APOOD(steps=4, heads=2), TRAIN, None, SETS, cache)


def test_the_seconds_before_a_kill_are_not_lost(tmp_path):
    process = context.Process(target=fit_until_killed, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    entry = entry_of(tmp_path)
    begun = json.loads((entry / "begun.json").read_text())
    assert begun["seconds"] == 0.0
    (entry / "begun.json").write_text(json.dumps({"seconds": 1000.0, "at": begun["at"] - 500.0}))
    assert run(APOOD(steps=4, heads=2), TRAIN, None, SETS, tmp_path).fit["seconds"] > 1500
    assert not (entry / "begun.json").exists()


def test_what_was_lost_after_the_last_checkpoint_does_not_count(tmp_path):
    """The second beginning kept nothing: its checkpoint is older than it."""
    checkpoint = Checkpoint(tmp_path / "fit.checkpoint", every_seconds=0.0)
    assert _begin(tmp_path / "begun.json", checkpoint) == 0.0
    checkpoint.save_if_due("a run", 1, {"a": torch.zeros(1)})
    os.utime(checkpoint.path, (2e9, 2e9))
    (tmp_path / "begun.json").write_text('{"seconds": 7.0, "at": 1999999990.0}')
    assert _begin(tmp_path / "begun.json", checkpoint) == 17.0
    (tmp_path / "begun.json").write_text('{"seconds": 17.0, "at": 2000000100.0}')
    assert _begin(tmp_path / "begun.json", checkpoint) == 17.0


def test_a_checkpoint_of_another_fit_is_thrown_away(tmp_path):
    detector = APOOD(steps=2, heads=2)
    whole = run(detector, TRAIN, None, SETS, tmp_path / "whole")
    entry = tmp_path / "cut" / entry_of(tmp_path / "whole").name
    entry.mkdir(parents=True)
    Checkpoint(entry / "fit.checkpoint", every_seconds=0.0).save_if_due("another run", 1, {"a": torch.zeros(1)})
    assert same_scores(run(detector, TRAIN, None, SETS, tmp_path / "cut").scores, whole.scores)
    assert {path.name.partition("-")[0] for path in entry.iterdir()} == {"detector", "fit.json", "scores"}


def test_a_checkpoint_that_cannot_be_written_costs_nothing_else(work, tmp_path, monkeypatch):
    kept = tmp_path / "kept"

    def full(self, _run, step, _tensors):
        kept.write_bytes(self.path.read_bytes())
        raise ArtefactError(f"The fit stopped at step {step}: no space left.") from OSError("no space left")

    save = Checkpoint.save_if_due

    def save_once(self, run_, step, tensors):
        (save if step == 1 else full)(self, run_, step, tensors)

    monkeypatch.setattr(Checkpoint, "is_due", lambda _self: True)
    monkeypatch.setattr(Checkpoint, "save_if_due", save_once)
    with pytest.raises(ArtefactError, match="no space left"):
        run(APOOD(steps=4, heads=2), TRAIN, None, {}, tmp_path / "cache")
    assert work.done()[0] == ["ap-ood"]
    assert (entry_of(tmp_path / "cache") / "fit.checkpoint").read_bytes() == kept.read_bytes()


def test_a_training_that_broke_off_is_told_by_its_kind_of_warning(tmp_path, monkeypatch):
    def fit_with_warnings(self, *arguments, original=KNN._fit):
        warnings.warn("a small worry", FitWarning, stacklevel=1)
        warnings.warn("it broke", DivergedWarning, stacklevel=1)
        original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(KNN, "_fit", fit_with_warnings)
        done = run(KNN(), TRAIN, None, {}, tmp_path)
    assert done.fit["diverged"] == run(KNN(), TRAIN, None, {}, tmp_path).fit["diverged"] == "it broke"
    assert done.fit["warnings"] == ["a small worry", "it broke"]
    assert run(KNN(k=2), TRAIN, None, {}, tmp_path).fit["diverged"] is None


def test_warnings_of_the_fit_are_kept_and_others_shown(tmp_path, monkeypatch):
    fit = KNN._fit

    def fit_with_warnings(self, *arguments):
        warnings.warn("did not converge", FitWarning, stacklevel=1)
        warnings.warn("something of a library", UserWarning, stacklevel=1)
        fit(self, *arguments)

    monkeypatch.setattr(KNN, "_fit", fit_with_warnings)
    with pytest.warns(UserWarning, match="something of a library") as shown:
        first = run(KNN(), TRAIN, None, SETS, tmp_path)
    assert len(shown) == 1
    assert first.fit["warnings"] == run(KNN(), TRAIN, None, SETS, tmp_path).fit["warnings"] == ["did not converge"]
