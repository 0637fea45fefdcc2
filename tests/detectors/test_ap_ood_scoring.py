"""Scoring with AP-OOD: the definition, and no extra pass over the tokens to search for non-finite values."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import correlated_sequences
from comparisons import with_parameters

import apood
from apood.detectors.ap_ood import recipe as recipes
from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.ap_ood.training import log_norms
from apood.detectors.contract import base
from apood.detectors.contract.artefact import _hash_config
from apood.pooling import Preprocessing
from apood.pooling.eager import attention_pool_eager
from apood.support.errors import ArtefactError, InputError
from apood.tokens.batch import Ragged, TokenBatch

DIM = 8
pytestmark = pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")


def with_sink(batch, first=20.0):
    return TokenBatch.from_sequences([torch.cat([torch.full_like(z[:1], first), z]) for z in batch])


@pytest.fixture(scope="module")
def test_set():
    return correlated_sequences(6, DIM, seed=2)


@pytest.fixture(scope="module", params=["sum", "student", "min"])
def detector(request):
    return APOOD(recipe="paper", heads=3, queries=2, steps=3, score=request.param).fit(correlated_sequences(40, DIM))


@pytest.fixture(scope="module")
def skipping():
    fitted = APOOD(steps=3).fit(with_sink(correlated_sequences(40, DIM)))
    assert fitted.skips_first_
    return fitted


def test_scores_follow_the_definition(detector, test_set):
    preprocessing = Preprocessing(detector.unit_tokens_, detector.origin_.double())
    h = attention_pool_eager(
        test_set.to(dtype=torch.float64), detector.queries_.double(), detector.beta_, preprocessing=preprocessing
    ).value
    squares = (h - detector.prototype_).square()
    if detector.score == "student":
        squares = 3 * torch.log1p(squares / 3)
    terms = detector.log_norms_ - squares
    expected = terms.amin(1) if detector.score == "min" else terms.sum(1)
    for found in (detector.score_samples(test_set), [float(detector.score_samples([z])[0]) for z in test_set]):
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)


def test_another_score_of_the_same_detector(detector, test_set):
    before = detector.score_samples(test_set)
    others = [with_parameters(detector, score=own).score_samples(test_set) for own in ("sum", "student", "min")]
    assert sum(np.array_equal(before, other) for other in others) == 1
    assert np.array_equal(detector.score_samples(test_set), before)


def test_a_saved_detector_keeps_the_score_of_its_recipe(test_set, tmp_path, monkeypatch):
    detector = APOOD(steps=3).fit(correlated_sequences(40, DIM))
    expected = detector.score_samples(test_set)
    assert detector.score is None and detector.score_ == "student"
    detector.save(tmp_path / "detector")
    monkeypatch.setitem(recipes._RECIPES, "robust", replace(recipes.ROBUST, score="min"))
    loaded = apood.load(tmp_path / "detector")
    for own in (detector, loaded):
        assert np.array_equal(own.score_samples(test_set), expected)
    old = apood.load(tmp_path / "detector")
    del old.score_  # as in detectors that were saved before it existed
    assert not np.array_equal(old.score_samples(test_set), expected)


def test_a_stored_score_that_does_not_exist_is_refused(tmp_path):
    APOOD(steps=3).fit(correlated_sequences(40, DIM)).save(tmp_path / "detector")
    path = tmp_path / "detector" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for wrong in ("mean", 3, None):
        config["learnt"]["score_"] = wrong
        config["config_sha256"] = _hash_config(config)
        path.write_text(json.dumps(config), encoding="utf-8")
        with pytest.raises(ArtefactError, match=r"holds a score_ that ap-ood cannot have learnt: it is .*, not one of"):
            apood.load(tmp_path / "detector")


@pytest.mark.parametrize("score", ["sum", "student"])
def test_the_held_out_distance_is_over_windows_like_that_of_training(score):
    train = correlated_sequences(60, DIM)
    windows = Ragged.from_lengths(torch.arange(60, dtype=torch.int32) % 4, [1] * 60)
    documents = train.with_channels(window=windows)
    fit = APOOD(recipe="paper", steps=3, score=score).fit(documents)
    found = fit.held_out_fit(documents)
    assert found == fit.held_out_fit(train)
    assert found.distance == pytest.approx(found.training_distance, rel=1e-4) and found.ratio == pytest.approx(
        1, rel=1e-4
    )


@pytest.mark.parametrize("count", [1, 6])
def test_tokens_are_not_checked_if_all_scores_are_finite(detector, skipping, test_set, count, monkeypatch):
    monkeypatch.setattr(base, "refuse_nonfinite", lambda *_: pytest.fail("read for nothing"))
    assert np.isfinite(detector.score_samples(test_set[:count])).all()
    assert np.isfinite(skipping.score_samples(with_sink(test_set[:count]))).all()
    assert np.isfinite(skipping.score_samples(with_sink(test_set[:count], first=3e38))).all(), "finite, if huge"


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_non_finite_value_in_a_skipped_token_is_named(skipping, test_set, value, count):
    bad = with_sink(test_set[:count])
    bad.values[int(bad.offsets[count - 1]), 3] = value
    with pytest.raises(InputError, match=rf"^Token 0 of sequence {count - 1} in the data to score"):
        skipping.score_samples(bad)


def test_a_finite_sequence_without_a_finite_score_lies_outside(detector, test_set):
    values = test_set.values.clone()
    values[int(test_set.offsets[2])] = 3e38
    scores = detector.score_samples(TokenBatch(values, test_set.offsets))
    assert np.flatnonzero(np.isneginf(scores)).tolist() == [2]


def test_norms_have_the_gradient_that_autograd_finds():
    weights = torch.randn(3, 2, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    results = []
    for function in (log_norms, lambda w: w.square().sum((1, 2)).log()):
        leaf = weights.clone().requires_grad_()
        logs = function(leaf)
        (logs * torch.tensor([1.0, -2.0, 0.5])).sum().backward()
        results.append((logs.detach(), leaf.grad))
    torch.testing.assert_close(*results)


def test_bfloat16_tokens_score_the_same_beside_any_others():
    def long_ones(count, seed):
        return correlated_sequences(count, 64, seed=seed, lengths=(200, 400), dtype=torch.bfloat16)

    fitted = APOOD(recipe="paper", heads=16, queries=2, steps=3).fit(long_ones(30, 0))
    batch = long_ones(6, 1)
    alone = [float(fitted.score_samples([z])[0]) for z in batch]
    np.testing.assert_allclose(fitted.score_samples(batch), alone, rtol=1e-6)
