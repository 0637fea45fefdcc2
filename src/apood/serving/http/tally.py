"""Counts of decisions: in total, at a grid of accept rates, and by minute. They hold no text."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from apood.pipeline.judging import Judgement

__all__ = ["RATES", "Tally"]

RATES = (0.8, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999)
"""Accept rates at which it is counted what would be refused."""

_MINUTES = 60
_ROUNDING = 1e-12  # p-values lie on a grid, and often exactly on a rate


class Tally:
    """Counts decisions. A text would be refused at an accept rate if its p-value is at most one minus the rate.

    Args:
        clock: the time in seconds; only tests give another one.

    Attributes:
        judged: the number of texts.
        ood: how many of them were out-of-distribution.
        unusual: how many of them were shorter or longer than those that set the threshold usually are.
        refused: how many of them would be refused, by accept rate.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.judged = self.ood = self.unusual = 0
        self.refused = dict.fromkeys(RATES, 0)
        self._minutes: deque[list[int]] = deque(maxlen=_MINUTES)  # minute, judged, out-of-distribution

    def add(self, judgements: Iterable[Judgement], unusual: int = 0) -> None:
        """Count the decisions on the texts of a request, `unusual` of which have an unusual length."""
        self.unusual += unusual
        minute = int(self._clock() // 60)
        if not self._minutes or self._minutes[-1][0] != minute:
            self._minutes.append([minute, 0, 0])
        for own in judgements:
            self.judged += 1
            self.ood += not own.accepted
            self._minutes[-1][1] += 1
            self._minutes[-1][2] += not own.accepted
            for rate in RATES:
                self.refused[rate] += would_be_refused(own, rate)

    def describe(self) -> dict[str, Any]:
        """Return the counts as JSON, minutes from the earliest to the latest."""
        now = int(self._clock() // 60)
        return {
            "judged": self.judged,
            "ood": self.ood,
            "unusual_lengths": self.unusual,
            "rates": [
                {"accept": rate, "refused": count, "share": count / self.judged if self.judged else None}
                for rate, count in self.refused.items()
            ],
            "minutes": [
                {"minutes_ago": now - minute, "judged": judged, "ood": ood}
                for minute, judged, ood in self._minutes
                if now - minute < _MINUTES
            ],
        }


def would_be_refused(judgement: Judgement, rate: float) -> bool:
    """Return whether a text would be refused at an accept rate. A score of -inf is refused at every rate."""
    p_value = judgement.p_value or 0.0
    return judgement.score == -float("inf") or p_value <= 1 - rate + _ROUNDING
