"""A running alarm for drift towards lower scores, whose false alarms are bounded for every number of inputs.

The calibration scores of rank k_1 < k_2 < … cut the range of scores into bins. If nothing has drifted, calibration
scores and inputs are exchangeable, and then the law of the bins is known exactly, although one calibration set is
compared with all inputs: n calibration scores and t inputs leave n + t + 1 gaps, and the next input falls into each
with equal probability, whatever came before. Bin j begins with n_j = k_j - k_(j-1) gaps, and every input c_j in it adds
one. So the next input falls into bin j with probability

    q_j = (n_j + c_j) / (n + 1 + t)        given the bins of all earlier inputs.

A bet that a share ε of the inputs is OOD and falls into bin j with probability f_j multiplies its stake by

    1 - ε + ε f_j / q_j,                   whose expected value is Σ_j q_j (1 - ε) + Σ_j ε f_j = 1.

Bets with several ε and f start before every input, with stakes that are fixed in advance and sum to 1. The *evidence*
is the worth of all of them, and of the stakes that wait. It starts at 1 and is never negative, and its expected value,
given the past, is its present value. By Ville's inequality, it ever reaches 1 / α with probability at most α.

The usual conformal martingale with a fixed calibration set takes the p-values for independent, which they are not, and
breaks its guarantee. With bets against n_j / (n + 1) instead of q_j, this alarm would do so, too.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from apood.decisions.conformal import Scores, as_scores, check_level, score_tolerance
from apood.support.checks import check_integer, check_number
from apood.support.errors import InputError

__all__ = ["DriftAlarm", "DriftState"]

_CUTS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)  # shares of calibration scores below the cuts; 0 is the lowest score
_SHIFTS = (1.0, 2.0, 3.0)  # how far OOD scores are below ID scores, in standard deviations of normal scores
_SHARES = (0.03, 0.1, 0.3, 0.8)  # ε, the shares of OOD inputs
_FARTHEST = 1e300  # stands for infinity, because draws must be able to break ties
_TIES = 0.1  # of `score_tolerance`: the difference of scores that count as equal here
_LEAST_SPREAD = 1e-9  # of a score, if the calibration scores are all the same
_ROWS = 8192  # inputs that are handled at once
_FORMAT = 1

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class DriftState:
    """What the alarm knows after some inputs: a few dozen numbers, however many inputs there were.

    Attributes:
        inputs: the number of inputs so far.
        counts: the inputs in each bin.
        growth: for each bet, the logarithm of the factor by which a stake from the beginning has grown.
        stakes: for each bet, the logarithm of the sum of its stakes, each divided by the growth before its start.
        log_evidence: the natural logarithm of the evidence against "nothing has drifted".
        highest: the largest `log_evidence` so far.
        lowest: for each bet, the smallest growth so far.
        lowest_at: for each bet, the number of inputs at which its growth was smallest.
        alarm_at: the number of inputs after which the alarm went off; None if it has not. It never goes back.
        since: the number of inputs after which the drift seems to have begun; an estimate, made at the alarm.
    """

    inputs: int
    counts: tuple[int, ...]
    growth: tuple[float, ...]
    stakes: tuple[float, ...]
    lowest: tuple[float, ...]
    lowest_at: tuple[int, ...]
    log_evidence: float = 0.0
    highest: float = 0.0
    alarm_at: int | None = None
    since: int | None = None


class DriftAlarm:
    """A running alarm on a stream of scores: it goes off when they drift towards lower ones.

    If the inputs are exchangeable with the calibration inputs, the probability that the alarm ever goes off is at most
    `false_alarm`, for every distribution, every number of calibration scores, and streams without an end. As for a
    threshold, the probability is over calibration sets and streams. It does not hold for inputs that depend on one
    another, such as the turns of one conversation.

    Scores that differ by no more than a ten-thousandth of the range of the calibration scores are put in random order,
    by fixed draws, so that copies of an input do not look like drift if rounding differs. The bound is exact for a
    tolerance that does not depend on the calibration scores; the effect of this one is too small to measure.

    Drift towards higher scores is not watched: such inputs are accepted anyway. Threads that share an alarm must update
    it one after the other.

    Args:
        calibration: calibration scores of a detector, in any order.
        false_alarm: the probability α that the alarm ever goes off without a drift.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> alarm = DriftAlarm(rng.normal(size=1000))
        >>> alarm.update(rng.normal(size=5000)).alarm_at
        >>> alarm.update(rng.normal(-1, size=500)).alarm_at
        5048
    """

    def __init__(self, calibration: Scores, false_alarm: float = 0.01) -> None:
        check_level(false_alarm, "false_alarm")
        known = np.sort(as_scores(calibration, "calibration scores"))
        if not len(known):
            raise InputError("The drift alarm needs at least one calibration score, got none.")
        self.false_alarm = float(false_alarm)
        self._identity = hashlib.sha256(known.tobytes()).hexdigest()
        self._tolerance = _TIES * score_tolerance(known)
        known = np.sort(self._spread(known, np.random.default_rng([self._seed, 1]).random(len(known))))
        ranks = sorted({max(1, round(share * (len(known) + 1))) for share in _CUTS})
        self._cuts = known[np.array(ranks) - 1]
        edges = [0, *ranks, len(known) + 1]
        self._gaps = np.diff(edges)
        self._share = np.tile(_SHARES, len(_SHIFTS))
        levels = [edge / edges[-1] for edge in edges]
        self._ood = np.repeat([_bin_shifted(levels, shift) for shift in _SHIFTS], len(_SHARES), axis=0)
        bets = len(self._share)
        self.state = DriftState(
            inputs=0,
            counts=(0,) * len(self._gaps),
            growth=(0.0,) * bets,
            stakes=(float(_log_stakes(np.zeros(1))[0]),) * bets,
            lowest=(0.0,) * bets,
            lowest_at=(0,) * bets,
        )

    @property
    def _seed(self) -> int:
        """The start of the draws that break ties: other calibration scores, other draws."""
        return int(self._identity[:16], 16)

    def update(self, scores: Scores) -> DriftState:
        """Take the scores of the next inputs, in the order in which they came, and return the state after them.

        The state depends only on the scores and their order, not on how they are divided among calls.
        """
        given = as_scores(scores, "scores")
        for first in range(0, len(given), _ROWS):
            self._take(given[first : first + _ROWS])
        return self.state

    def _take(self, scores: Floats) -> None:
        state, count = self.state, len(scores)
        draws = np.random.Generator(np.random.PCG64([self._seed, 2]).advance(state.inputs)).random(count)
        bins = np.searchsorted(self._cuts, self._spread(scores, draws))
        expected = self._expect(bins)
        factors = np.log1p(self._share * (self._ood[:, bins].T / expected[:, None] - 1))
        # `accumulate` adds one row after the other, so the division into calls does not change the rounding.
        growth = np.add.accumulate(np.vstack([state.growth, factors]))[1:]
        after = state.inputs + np.arange(1, count + 1, dtype=np.float64)
        started = _log_stakes(after)[:, None] - growth
        stakes = np.logaddexp.accumulate(np.vstack([state.stakes, started]))[1:]
        worth = np.logaddexp.reduce(stakes + growth, axis=1) - math.log(len(self._share))
        evidence = np.logaddexp(worth, np.log(_waiting(after + 1)))
        lowest = np.minimum.accumulate(np.vstack([state.lowest, growth]))
        fell = np.where(growth < lowest[:-1], after[:, None], 0).astype(np.int64)
        lowest_at = np.maximum.accumulate(np.vstack([state.lowest_at, fell]))
        alarm_at, since = state.alarm_at, state.since
        over = np.flatnonzero(evidence >= -math.log(self.false_alarm))
        if alarm_at is None and len(over):
            first = int(over[0])
            alarm_at = state.inputs + first + 1
            # The bet that has grown most has done so since its growth was smallest, like a CUSUM.
            since = int(lowest_at[first + 1, np.argmax(growth[first] - lowest[first + 1])])
        self.state = DriftState(
            inputs=state.inputs + count,
            counts=tuple((state.counts + np.bincount(bins, minlength=len(self._gaps))).tolist()),
            growth=tuple(growth[-1].tolist()),
            stakes=tuple(stakes[-1].tolist()),
            lowest=tuple(lowest[-1].tolist()),
            lowest_at=tuple(lowest_at[-1].tolist()),
            log_evidence=float(evidence[-1]),
            highest=max(state.highest, float(evidence.max())),
            alarm_at=alarm_at,
            since=since,
        )

    def _expect(self, bins: NDArray[np.intp]) -> Floats:
        """Return q_j of the bin of each next input: how probable it was just before."""
        rows = np.arange(len(bins))
        gaps = np.zeros((len(bins) + 1, len(self._gaps)), dtype=np.int64)
        gaps[0] = self._gaps + self.state.counts
        gaps[rows + 1, bins] = 1
        gaps = gaps.cumsum(axis=0)
        return np.asarray(gaps[rows, bins] / (gaps[0].sum() + rows), dtype=np.float64)

    def _spread(self, scores: Floats, draws: Floats) -> Floats:
        """Return the scores, each a little higher by its draw, so that no two are equal."""
        finite = np.clip(scores, -_FARTHEST, _FARTHEST)
        return finite + np.maximum(self._tolerance, _LEAST_SPREAD * (np.abs(finite) + _LEAST_SPREAD)) * draws

    def gauges(self) -> dict[str, float]:
        """Return what an operator watches, as numbers by name: `alarm` is 1 after the alarm, else 0."""
        return {
            "inputs": self.state.inputs,
            "log10_evidence": self.state.log_evidence / math.log(10),
            "log10_evidence_of_alarm": -math.log10(self.false_alarm),
            "alarm": float(self.state.alarm_at is not None),
        }

    def to_json(self) -> dict[str, Any]:
        """Return all that `resume` needs, besides the calibration scores, as JSON."""
        return {
            "format": _FORMAT,
            "calibration": self._identity,
            "false_alarm": self.false_alarm,
            **asdict(self.state),
        }

    @classmethod
    def resume(cls, calibration: Scores, saved: Any) -> Self:
        """Return the alarm that `to_json` described; the calibration scores must be the same."""
        fields = saved if isinstance(saved, Mapping) else {}
        if fields.get("format") != _FORMAT:
            raise InputError(f"This is not the state of a drift alarm: its format must be {_FORMAT}.")
        check_number("false_alarm in the state of the drift alarm", fields.get("false_alarm"), above=0, below=1)
        alarm = cls(calibration, fields["false_alarm"])
        if fields.get("calibration") != alarm._identity:
            raise InputError("The state of the drift alarm belongs to another calibration: start over without it.")
        alarm.state = _read_state(fields, alarm.state)
        return alarm


def _read_state(fields: Mapping[str, Any], start: DriftState) -> DriftState:
    """Return the state in `fields`, with as many bins and bets as there are at the start."""
    kept: dict[str, Any] = {name: fields.get(name) for name in asdict(start)}
    for name in ("counts", "growth", "stakes", "lowest", "lowest_at"):
        values, size = kept[name], len(getattr(start, name))
        if not isinstance(values, list | tuple) or len(values) != size:
            raise InputError(f"{name} in the state of the drift alarm must be a list of {size} numbers.")
        for value in values:
            if name in ("counts", "lowest_at"):
                check_integer(f"{name} in the state of the drift alarm", value, 0)
            else:
                check_number(f"{name} in the state of the drift alarm", value)
        kept[name] = tuple(values)
    for name in ("log_evidence", "highest"):
        check_number(f"{name} in the state of the drift alarm", kept[name])
    for name in ("inputs", "alarm_at", "since"):
        if name == "inputs" or kept[name] is not None:
            check_integer(f"{name} in the state of the drift alarm", kept[name], 0)
    if sum(kept["counts"]) != kept["inputs"]:
        raise InputError(
            f"The state of the drift alarm is damaged: its counts sum to {sum(kept['counts'])}, "
            f"and it has {kept['inputs']} inputs."
        )
    return DriftState(**kept)


def _bin_shifted(levels: list[float], shift: float) -> list[float]:
    """Return the probabilities of the bins for scores that are lower by `shift`, if ID scores are standard normal.

    `levels` has the shares of ID scores below the edges of the bins. Any f that sums to 1 would keep the guarantee.
    """
    normal = NormalDist()
    below = [0.0, *(normal.cdf(normal.inv_cdf(level) + shift) for level in levels[1:-1]), 1.0]
    return np.diff(below).tolist()


def _waiting(inputs: Floats) -> Floats:
    """Return the share of the stakes that have not started before input number `inputs`, counted from 0."""
    return np.asarray(1 / (1 + np.log1p(inputs)))


def _log_stakes(inputs: Floats) -> Floats:
    """Return the logarithm of the stake that starts before input number `inputs`: waiting(t) - waiting(t + 1)."""
    return np.asarray(np.log(_waiting(inputs) * _waiting(inputs + 1) * np.log1p(1 / (1 + inputs))))
