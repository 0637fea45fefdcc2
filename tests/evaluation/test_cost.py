"""Estimates of the time of fits."""

import pytest
from builders import correlated_sequences

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.fusion import Fusion
from apood.detectors.knn import KNN
from apood.evaluation import cost
from apood.evaluation.cost import Cost, estimate_cost
from apood.support.checks import format_duration


def test_operations_follow_from_the_work():
    tokens = correlated_sequences(100, 8, lengths=(10, 11))
    short, long = (APOOD(heads=4, queries=2, steps=steps).count_operations(tokens) for steps in (10, 20))
    assert short == 6 * 8 * (4 * 2) * 10 * 64 * float(tokens.lengths.double().mean())  # batches of 64 sequences
    assert long == 2 * short and KNN().count_operations(tokens) == 0
    members = [APOOD(heads=4, queries=2, steps=10), KNN()]
    assert Fusion(members).count_operations(tokens) == short


def test_seconds_are_operations_by_speed(monkeypatch):
    tokens = correlated_sequences(100, 8)
    detector = APOOD(steps=10)
    monkeypatch.setattr(cost, "_measure_speed", lambda _: detector.count_operations(tokens) / 120)
    assert estimate_cost([(detector, tokens)] * 3) == pytest.approx((3, 3 * (1 + 120 / 0.6)))
    assert estimate_cost([(KNN(), tokens)]) == (1, 1)


def test_work_of_more_than_a_minute_is_announced():
    assert Cost(3, 59).notice is None
    assert Cost(1, 200).notice == "1 fit will take about 3 minutes."
    assert Cost(30, 10_000).notice == "30 fits will take about 3 hours."
    assert [format_duration(seconds) for seconds in (0.1, 89, 1e6)] == ["1 second", "89 seconds", "12 days"]


def test_the_speed_is_that_of_this_machine():
    assert 1e7 < cost._measure_speed(16) < 1e17
