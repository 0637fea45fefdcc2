"""A calibration from reviewed traffic: scores, and the verdicts of people who looked at the inputs.

New ID inputs are exchangeable with the reviewed ID inputs if these are a random sample of the traffic. Then the
guarantee of a calibration holds for them, and it needs no texts. If some inputs were more likely to be reviewed than
others, such as all refused ones and a tenth of the others, an input that was chosen with probability p is kept with
probability p_min / p. What is left was chosen with the same probability p_min, whatever its score, so it is a random
sample.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from apood.decisions.conformal import Calibration, Scores, as_scores
from apood.support.errors import InputError

__all__ = ["Review"]

_UNLIKELY = 0.01  # chance below which a sample is taken to be chosen by its scores


@dataclass(frozen=True, eq=False)
class Review:
    """Reviewed inputs that are equally likely to have been reviewed.

    Attributes:
        scores: their scores; none is -inf, because such inputs are always refused.
        is_id: whether the reviewers called them in-distribution.
        unscored: the number of inputs without a score that were left out.
        dropped: the number of inputs that were dropped because others were less likely to be reviewed.
    """

    scores: NDArray[np.float64]
    is_id: NDArray[np.bool_]
    unscored: int
    dropped: int

    @classmethod
    def of(cls, scores: Scores, is_id: NDArray[np.bool_], probabilities: NDArray[np.float64]) -> "Review":
        """Return a review of inputs that were chosen with these probabilities."""
        given = as_scores(scores, "reviewed scores")
        scored = ~np.isneginf(given)
        least = probabilities.min(initial=1.0)
        kept = np.random.default_rng(0).random(len(given)) * probabilities < least
        return cls(given[scored & kept], is_id[scored & kept], int((~scored).sum()), int((scored & ~kept).sum()))

    def calibrate(self, accept: float, *, coarse: bool = False) -> Calibration:
        """Return the calibration by the inputs that are in-distribution; `coarse` as in `score_tolerance`."""
        return Calibration.from_scores(self.scores[self.is_id], accept, coarse=coarse)

    def refuse_selected(self, before: Calibration) -> None:
        """Raise an error if all scores are on one side of the threshold or of the median, and not by chance.

        Then the inputs were probably chosen by their scores, such as the refused ones only.
        """
        known, count = len(before.scores), len(self.scores)
        gaps = np.arange(known + 1, known + 1 + count)
        middle = (known + 1) // 2
        refused = int((~before.accepts(before.scores)).sum()) + 1
        for name, rank, cut in (
            ("threshold of the detector", refused, before.threshold),
            ("median of its calibration scores", middle, before.scores[middle - 1]),
        ):
            below = int((self.scores < cut).sum())
            # the probability that all, or none, of the inputs are below the calibration score of this rank
            for side, same, chances in (
                ("below", below == count, (rank + np.arange(count)) / gaps),
                ("above", below == 0, 1 - rank / gaps),
            ):
                if same and np.log(chances).sum() < np.log(_UNLIKELY):
                    raise InputError(
                        f"All {count:,} reviewed scores are {side} the {name}: inputs that were chosen by their scores "
                        "give a wrong threshold. Review a random sample, or give each row the probability with which "
                        "it was chosen."
                    )
