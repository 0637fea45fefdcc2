"""The distance behind a score of AP-OOD, from the pooled values of a sequence."""

from dataclasses import dataclass

from torch import Tensor, log1p
from torch.nn.functional import mse_loss

from apood.detectors.ap_ood.recipe import ScoreName
from apood.pooling import Pooled

__all__ = ["Shortfall", "compute_score_terms"]

_FREEDOM = 3.0  # ν of the Student score; heads are trained to d² of order 1, so it needs no scale


def compute_score_terms(squares: Tensor, score: ScoreName) -> Tensor:
    """Return the terms of the score from the d² of each head."""
    return _FREEDOM * log1p(squares / _FREEDOM) if score == "student" else squares


@dataclass(frozen=True, eq=False)
class Shortfall:
    """The distance behind a score: the best possible score minus the score, before the correction for the length.

    A non-finite pooled value makes it non-finite.

    Attributes:
        score: "sum", "student" or "min".
        prototype: μ `[M]`.
        log_norms: log |W_j|² `[M]`.
    """

    score: ScoreName
    prototype: Tensor
    log_norms: Tensor

    def __call__(self, pooled: Pooled) -> Tensor:
        """Return the distance `[N]` of each sequence."""
        return self.from_values(pooled.value)

    def from_values(self, h: Tensor) -> Tensor:
        """Return the distance `[N]` of each sequence from its pooled values `[N, M]`."""
        squares = mse_loss(h, self.prototype.expand_as(h), reduction="none")  # one launch on a GPU
        if self.score == "min":
            return (squares - (self.log_norms - self.log_norms.amin())).amax(1)
        return compute_score_terms(squares, self.score).sum(1)
