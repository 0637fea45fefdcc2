"""The health of a detector: nothing is found where nothing is wrong, and each fault is found."""

from dataclasses import replace

import numpy as np
import pytest
from builders import correlated_sequences

from apood import APOOD, KNN, Fusion, Mahalanobis, MahalanobisKNN
from apood.evaluation.health import examine
from apood.pipeline.facts import Facts
from apood.pipeline.seen import Seen
from apood.tokens.batch import TokenBatch, encode_texts


def with_texts(tokens: TokenBatch, name: str) -> TokenBatch:
    texts = [" ".join(f"{name}{number}x{word}" for word in range(9)) for number in range(len(tokens))]
    return tokens.with_channels(text=encode_texts(texts))


@pytest.fixture(scope="module")
def train():
    return with_texts(correlated_sequences(300, 8, seed=0), "train")


@pytest.fixture(scope="module")
def detector(train):
    return Mahalanobis().fit(train).calibrate(correlated_sequences(300, 8, seed=1), accept=0.9)


@pytest.fixture(scope="module")
def facts(train):
    return replace(Facts.of_fit(train), calibration=Seen.of(correlated_sequences(300, 8, seed=1)))


def find(detector, facts, source):
    return {
        finding.kind: finding.sentence for finding in examine(detector, facts, source, detector.score_samples(source))
    }


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_nothing_is_found_where_nothing_is_wrong(detector, facts, seed):
    assert find(detector, facts, with_texts(correlated_sequences(200, 8, seed=seed), "new")) == {}


def test_inputs_of_another_kind_are_found(detector, facts):
    found = find(detector, facts, correlated_sequences(200, 8, seed=2, shift=2.0))
    assert {"accept rate", "p-values"} <= found.keys()
    assert "calibrate with inputs like these" in found["accept rate"] and "lower" in found["p-values"]


def test_copies_of_training_texts_are_found(detector, facts, train):
    assert "copies of training texts" in find(detector, facts, train)["data"]


@pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")
def test_a_training_that_failed_is_found(facts, train):
    unsettled = APOOD(recipe="paper", steps=2)
    for detector in (unsettled, Fusion([KNN(), unsettled])):
        detector.fit(train).calibrate(correlated_sequences(300, 8, seed=1), accept=0.9)
        found = find(detector, facts, with_texts(correlated_sequences(200, 8, seed=2), "new"))
        assert "Training has not settled" in found["training"]
    assert found["training"].startswith("ap-ood: ")


@pytest.mark.parametrize("seed", [1, 6, 7])
@pytest.mark.filterwarnings("ignore:The detector is calibrated on the sequences it was fitted on")
def test_a_calibration_unlike_the_training_is_found(train, facts, seed):
    new, foreign, copied = (
        correlated_sequences(200, 8, seed=seed), correlated_sequences(200, 8, seed=seed, shift=1.5), train
    )  # fmt: skip
    detector = Fusion([KNN(), MahalanobisKNN()]).fit(train)
    found = {}
    for name, source in (("new", new), ("foreign", foreign), ("copied", copied)):
        detector.calibrate(source, accept=0.9)
        found[name] = find(detector, facts, correlated_sequences(200, 8, seed=9)).get("calibration", "")
    assert found["new"] == "" and "lower than" in found["foreign"] and "higher than" in found["copied"]
    windows = replace(facts, calibration=replace(facts.calibration, sequences=900))
    assert "calibration" not in find(detector, windows, new), "the worst window of each would count"


def test_other_lengths_are_found(detector, facts):
    longer = replace(facts.calibration, tokens=facts.calibration.tokens * 3)
    assert (
        "tokens on average"
        in find(detector, replace(facts, calibration=longer), correlated_sequences(99, 8, seed=2))["lengths"]
    )
    short = correlated_sequences(99, 8, seed=2, lengths=(1, 2))
    assert "shorter than 99%" in find(detector, facts, short)["data"]


def test_cut_inputs_are_found(train):
    encoder = {"model": "m", "max_tokens": 5}
    cut = [TokenBatch(part.values, part.offsets, {}, encoder) for part in (train, correlated_sequences(99, 8, seed=2))]
    detector = Mahalanobis().fit(cut[0]).calibrate(cut[1])
    assert "only their beginnings" in find(detector, Facts(), cut[1])["cut inputs"]


def test_chance_is_allowed_for(detector):
    """Few inputs say little, whatever their share."""
    scores = np.full(3, detector.calibration.scores.mean())
    scores[0] = -1e9
    kinds = [finding.kind for finding in examine(detector, Facts(), correlated_sequences(3, 8), scores)]
    assert "accept rate" not in kinds
