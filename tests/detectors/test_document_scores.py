"""Detectors judge documents: one score each, that of the worst window, and a promise about documents."""

import itertools
import warnings

import numpy as np
import pytest
import torch

from apood import APOOD, KNN, Fusion, Mahalanobis, TokenBatch, load
from apood.evaluation.entry import Entry
from apood.evaluation.split import Split
from apood.evaluation.study import run_study
from apood.tokens.batch import Ragged
from apood.tokens.documents import WINDOW, count_documents, find_documents
from apood.tokens.source import Subset
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter


def make_documents(count: int, seed: int, dim: int = 6, tail: float = 0.0) -> TokenBatch:
    """Return documents of 1 to 5 windows; the last window of those with several is moved by `tail`."""
    rng = np.random.default_rng(seed)
    rows, windows = [], []
    for _ in range(count):
        own = rng.integers(1, 6)
        centre = rng.normal(size=dim)
        for window in range(own):
            moved = tail if 0 < window == own - 1 else 0.0
            rows.append((centre + moved + rng.normal(size=(rng.integers(3, 9), dim))).astype("f4"))
            windows.append(window)
    numbers = Ragged.from_lengths(torch.tensor(windows, dtype=torch.int32), [1] * len(windows))
    return TokenBatch.from_sequences(rows).with_channels(**{WINDOW: numbers})


def strip(batch: TokenBatch) -> TokenBatch:
    return TokenBatch(batch.values, batch.offsets)


METHODS = [KNN(k=3), Mahalanobis(), APOOD(steps=5), Fusion([KNN(k=3), Mahalanobis()])]


@pytest.mark.parametrize("detector", METHODS, ids=lambda detector: detector.name)
def test_a_document_has_the_score_of_its_worst_window(detector):
    train, held_out, test = make_documents(60, 0), make_documents(60, 1), make_documents(30, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detector.fit(train).calibrate(held_out, accept=0.9)
    of_windows = detector.score_samples(strip(test))
    worst = [part.min() for part in np.split(of_windows, find_documents(test)[1:])]
    np.testing.assert_allclose(detector.score_samples(test), worst, rtol=1e-9)
    for values in (detector.predict(test), detector.p_values(test), detector.decision_function(test)):
        assert values.shape == (30,)
    assert detector.select_ood(test).shape == (30,)
    assert len(detector.calibration_scores_) == 60, "each document counts once"
    # Nothing changes for sequences without windows.
    assert detector.score_samples(strip(test)).shape == (len(test),)


def test_a_score_does_not_depend_on_other_documents():
    detector = KNN(k=1).fit(make_documents(50, 0))
    test = make_documents(20, 1)
    scores = detector.score_samples(test)
    starts = [*find_documents(test).tolist(), len(test)]
    alone = [detector.score_samples(test.select(slice(a, b)))[0] for a, b in itertools.pairwise(starts)]
    np.testing.assert_allclose(alone, scores, rtol=1e-6)


def test_an_ordinary_beginning_does_not_hide_a_foreign_tail():
    detector = KNN(k=1, normalize="none").fit(make_documents(300, 0)).calibrate(make_documents(200, 1))
    foreign = make_documents(100, 2, tail=30.0)
    several = np.diff(find_documents(foreign), append=len(foreign)) > 1
    assert (detector.predict(foreign)[several] == -1).all()
    beginnings = foreign.select(find_documents(foreign))
    assert (detector.predict(strip(beginnings)) == 1).mean() > 0.7, "the beginnings alone look ordinary"


def test_the_promise_is_about_documents():
    """Calibrated by windows, far fewer long documents would be accepted than promised."""
    detector, shares, by_windows = KNN(k=1).fit(make_documents(200, 0)), [], []
    for seed in range(1, 41):
        held_out, test = make_documents(100, seed), make_documents(100, 1000 + seed)
        shares.append((detector.calibrate(held_out, accept=0.9).predict(test) == 1).mean())
        by_windows.append((detector.calibrate(strip(held_out), accept=0.9).predict(test) == 1).mean())
    assert np.mean(shares) == pytest.approx(0.905, abs=0.015)
    assert np.mean(by_windows) < 0.85


def test_stores_and_subsets_are_judged_alike(tmp_path):
    test = make_documents(20, 3)
    with TokenStoreWriter(tmp_path / "store", dim=6, shard_bytes=500) as writer:
        writer.append(test)
    store = TokenStore(tmp_path / "store")
    detector = KNN(k=1).fit(make_documents(50, 0)).calibrate(make_documents(50, 1))
    np.testing.assert_allclose(detector.score_samples(store), detector.score_samples(test), rtol=1e-6)
    middle = find_documents(test)[5]
    np.testing.assert_allclose(
        detector.score_samples(Subset(store, slice(middle, None))), detector.score_samples(test)[5:], rtol=1e-6
    )
    detector.save(tmp_path / "detector")
    np.testing.assert_allclose(load(tmp_path / "detector").score_samples(store), detector.score_samples(test))


def test_an_empty_window_makes_its_document_ood():
    detector = KNN(k=1).fit(make_documents(50, 0)).calibrate(make_documents(50, 1))
    rows = [np.zeros((2, 6), "f4"), np.zeros((0, 6), "f4"), np.zeros((2, 6), "f4")]
    numbers = Ragged.from_lengths(torch.tensor([0, 1, 0], dtype=torch.int32), [1, 1, 1])
    batch = TokenBatch.from_sequences(rows).with_channels(window=numbers)
    with pytest.warns(UserWarning, match="1 of 3 sequences have no tokens"):
        scores = detector.score_samples(batch)
    assert scores[0] == -np.inf and np.isfinite(scores[1])


def test_a_study_counts_documents(tmp_path):
    train, test, ood = make_documents(60, 0), make_documents(30, 1), make_documents(20, 2, tail=30.0)
    split = Split(train, test, {"far": ood}, validation=make_documents(40, 3))
    for _ in range(2):  # the second time from the cache
        (result,) = run_study([(Entry("knn"), [split])], cache=tmp_path)
        assert not result.failures
        (run,) = result.runs
        assert (len(run.test_scores), len(run.ood_scores["far"])) == (30, count_documents(ood))
