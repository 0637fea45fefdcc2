"""The drift alarm keeps its promise, finds drift, and does not depend on how a stream is cut into calls."""

import doctest
import json
import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apood.decisions import drift
from apood.decisions.drift import DriftAlarm
from apood.support.errors import InputError

RNG = np.random.default_rng(0)
CALIBRATION = RNG.normal(size=300)
STREAM = np.concatenate([RNG.normal(size=400), RNG.normal(-2, size=60)])


def drifting(shift: float, count: int = 2000, n: int = 300) -> DriftAlarm:
    rng = np.random.default_rng(5)
    alarm = DriftAlarm(rng.normal(size=n))
    alarm.update(rng.normal(shift, size=count))
    return alarm


@pytest.mark.parametrize(("calibration", "inputs"), [(3, 4), (5, 2), (1, 6)])
def test_the_mean_evidence_over_all_orders_of_the_scores_is_1(calibration, inputs):
    """If nothing has drifted, all orders of all scores are equally likely: this is the promise itself."""
    orders = permutations(range(calibration + inputs))
    evidence = [math.exp(DriftAlarm(o[:calibration]).update(o[calibration:]).log_evidence) for o in orders]
    assert np.mean(evidence) == pytest.approx(1, abs=1e-9)
    assert np.std(evidence) > 0.1


def test_the_evidence_is_the_worth_of_all_bets():
    """Computed as the documentation says, one stake after the other."""
    alarm = DriftAlarm(CALIBRATION)
    alarm.update(STREAM[380:430])
    n, (cuts, gaps) = len(CALIBRATION), (alarm._cuts, alarm._gaps.tolist())
    assert sum(gaps) == n + 1
    counts, stakes = list(gaps), []
    for t, score in enumerate(STREAM[380:430]):
        waiting = [1 / (1 + math.log(1 + t + i)) for i in range(2)]
        stakes.append([(waiting[0] - waiting[1]) / len(alarm._share)] * len(alarm._share))
        j = int((cuts < score).sum())
        q = counts[j] / sum(counts)
        for own in stakes:
            for i, (share, ood) in enumerate(zip(alarm._share, alarm._ood, strict=True)):
                own[i] *= 1 - share + share * ood[j] / q
        counts[j] += 1
    worth = sum(map(sum, stakes)) + waiting[1]
    assert alarm.state.log_evidence == pytest.approx(math.log(worth), abs=1e-9)


def share_of_alarms(streams: int, make_stream, n: int, inputs: int, level: float) -> float:
    """The share of clean streams with an alarm."""
    alarms = 0
    for seed in range(streams):
        rng = np.random.default_rng([seed, n])
        scores = make_stream(rng, n + inputs)
        alarms += DriftAlarm(scores[:n], level).update(scores[n:]).alarm_at is not None
    return alarms / streams


def with_copies(rng, count):
    """Normal scores, 30% of them of one phrase, whose score is rounded to either side."""
    scores = rng.normal(size=count)
    scores[rng.random(count) < 0.3] = -1.3
    return scores + 3e-6 * rng.uniform(-1, 1, size=count)


@pytest.mark.parametrize("n", [20, 200])
@pytest.mark.parametrize(
    "make_stream",
    [lambda rng, count: rng.normal(size=count), lambda rng, count: rng.integers(3, size=count), with_copies],
    ids=["normal", "three-values", "copies"],
)
def test_the_promise_holds_for_clean_streams(make_stream, n):
    share = share_of_alarms(200, make_stream, n, 3000, level=0.1)
    assert share <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / 200)


def test_bets_against_the_calibration_alone_would_break_the_promise(monkeypatch):
    """So the test above can fail: these are the odds of the usual conformal martingale."""
    monkeypatch.setattr(DriftAlarm, "_expect", lambda self, bins: self._gaps[bins] / self._gaps.sum())
    assert share_of_alarms(200, lambda rng, count: rng.normal(size=count), 200, 3000, level=0.1) > 0.2


@given(st.lists(st.integers(0, len(STREAM)), max_size=5))
def test_the_division_into_calls_does_not_matter(places):
    whole, parts = DriftAlarm(CALIBRATION), DriftAlarm(CALIBRATION)
    whole.update(STREAM)
    for part in np.split(STREAM, sorted(places)):
        parts.update(part)
    assert parts.state == whole.state


def test_the_division_into_blocks_does_not_matter(monkeypatch):
    whole = DriftAlarm(CALIBRATION).update(STREAM)
    monkeypatch.setattr(drift, "_ROWS", 7)
    assert DriftAlarm(CALIBRATION).update(STREAM) == whole


@pytest.mark.parametrize(("shift", "latest"), [(-1, 100), (-3, 20), (-math.inf, 10)])
def test_lower_scores_are_drift(shift, latest):
    found = drifting(shift).state.alarm_at
    assert found is not None and found <= latest


def test_higher_scores_are_not():
    assert drifting(2).state.alarm_at is None


def test_an_alarm_stays_where_it_went_off():
    alarm = drifting(-3)
    before = alarm.state
    after = alarm.update(np.full(5000, 1.0))
    assert after.alarm_at == before.alarm_at and after.highest >= before.highest > after.log_evidence


def test_drift_is_found_after_a_long_clean_stream():
    rng = np.random.default_rng(2)
    alarm = DriftAlarm(rng.normal(size=1000))
    assert alarm.update(rng.normal(size=300_000)).alarm_at is None
    found = alarm.update(rng.normal(-1, size=500))
    assert found.alarm_at is not None and found.since is not None
    assert 300_000 < found.alarm_at < 300_100 and abs(found.since - 300_000) < 20


def test_the_beginning_of_the_drift_is_estimated():
    errors = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        alarm = DriftAlarm(rng.normal(size=500))
        odd = np.arange(5000) >= 2000
        state = alarm.update(rng.normal(size=5000) - 2.5 * (odd & (rng.random(5000) < 0.2)))
        assert state.since is not None and state.since < state.alarm_at
        errors.append(state.since - 2000)
    assert abs(np.median(errors)) < 20 and np.mean(np.abs(errors)) < 100


def test_gauges_are_numbers_for_a_monitor():
    alarm = DriftAlarm(CALIBRATION, 0.001)
    assert alarm.gauges() == {
        "inputs": 0,
        "log10_evidence": 0,
        "log10_evidence_of_alarm": pytest.approx(3),
        "alarm": 0,
    }
    state = alarm.update(STREAM)
    assert state.alarm_at is not None
    found = alarm.gauges()
    assert found["alarm"] == 1 and found["inputs"] == len(STREAM)
    assert 10 ** found["log10_evidence"] == pytest.approx(math.exp(state.log_evidence))


def test_the_state_survives_json():
    alarm = DriftAlarm(CALIBRATION, 0.05)
    alarm.update(STREAM[:300])
    saved = json.loads(json.dumps(alarm.to_json(), allow_nan=False))
    other = DriftAlarm.resume(CALIBRATION[::-1], saved)
    assert other.false_alarm == 0.05
    assert other.update(STREAM[300:]) == alarm.update(STREAM[300:])


def test_a_new_state_survives_json():
    saved = json.loads(json.dumps(DriftAlarm(CALIBRATION).to_json(), allow_nan=False))
    assert DriftAlarm.resume(CALIBRATION, saved).state == DriftAlarm(CALIBRATION).state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "not the state of a drift alarm"),
        ({"calibration": "0"}, "belongs to another calibration"),
        ({"false_alarm": 2}, "false_alarm in the state .* must be a finite number"),
        ({"counts": [1, 2]}, "counts in the state .* must be a list of 6 numbers"),
        ({"counts": [-1, 1, 0, 0, 0, 0]}, "counts in the state .* must be at least 0"),
        ({"growth": None}, "growth in the state .* must be a list of 12 numbers"),
        ({"stakes": ["a"] * 12}, "stakes in the state .* must be a finite number"),
        ({"highest": math.nan}, "highest in the state .* must be a finite number"),
        ({"inputs": -1}, "inputs in the state .* must be at least 0"),
        ({"since": -1}, "since in the state .* must be at least 0"),
        ({"alarm_at": 0.5}, "alarm_at in the state .* must be a whole number"),
        ({"inputs": 7}, "its counts sum to 0, and it has 7 inputs"),
    ],
)
def test_a_state_that_cannot_be_used_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        DriftAlarm.resume(CALIBRATION, DriftAlarm(CALIBRATION).to_json() | change)


@pytest.mark.parametrize("saved", [None, [], {}, "state"])
def test_what_is_no_state_is_refused(saved):
    with pytest.raises(InputError, match="not the state of a drift alarm"):
        DriftAlarm.resume(CALIBRATION, saved)


@pytest.mark.parametrize(
    ("calibration", "level", "message"),
    [
        ([], 0.01, "at least one calibration score"),
        ([math.nan], 0.01, "calibration scores hold 1 NaN"),
        ([1.0], 0.0, "false_alarm must be a number strictly between 0 and 1"),
    ],
)
def test_what_cannot_be_watched_is_refused(calibration, level, message):
    with pytest.raises(InputError, match=message):
        DriftAlarm(calibration, level)


def test_a_score_that_is_no_number_changes_nothing():
    alarm = drifting(0)
    before = alarm.state
    with pytest.raises(InputError, match="scores hold 1 NaN of 3, the first at index 1"):
        alarm.update([0.0, math.nan, 0.0])
    assert alarm.state == before


@pytest.mark.parametrize("calibration", [[0.0] * 50, [5.0] * 50, [-math.inf] * 50, [1e306] * 50])
def test_scores_that_are_all_the_same_are_no_drift(calibration):
    assert DriftAlarm(calibration).update(calibration * 40).alarm_at is None


def test_the_example_runs():
    (example,) = doctest.DocTestFinder(recurse=False).find(DriftAlarm, "DriftAlarm", globs={"DriftAlarm": DriftAlarm})
    result = doctest.DocTestRunner().run(example)
    assert result.attempted > 0 and result.failed == 0
