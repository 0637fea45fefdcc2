"""One point of a grid: a detector with some settings, fitted and judged."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.contract.base import Detector, Scores
from apood.evaluation.intervals import Estimate
from apood.evaluation.metrics import auroc
from apood.evaluation.runs import fitted, run
from apood.support.errors import ApoodError
from apood.tokens.source import TokenSource

__all__ = ["HeldOut", "Outcome", "Trial"]

_ID, _AUX = "ID validation", "AUX validation"
_FAR = 4.0  # times the training distance, or times the 1 that a settled head has


class HeldOut(NamedTuple):
    """AP-OOD on ID sequences that it was not fitted on.

    `loss` is the paper's, mean_n Σ_j d²_nj - Σ_j log |W_j|²; the distances are the mean d² a head.
    """

    loss: float
    distance: float
    training_distance: float

    @property
    def ratio(self) -> float:
        """How much farther held-out ID sequences are than those of the training: 1 is ideal, whatever M and T."""
        return self.distance / max(self.training_distance, np.finfo(np.float64).tiny)

    @property
    def disaster(self) -> bool:
        """Whether heads never settled, or learnt the training sequences by heart."""
        return not (self.ratio < _FAR and self.training_distance < _FAR)


class Outcome(NamedTuple):
    """What came of one fit; `auroc` where there were outliers to judge by, else `held_out`."""

    auroc: Estimate | None
    held_out: HeldOut | None
    fit_seconds: float
    warnings: list[str]


@dataclass(frozen=True)
class Trial:
    """Fits a detector on `train` and `aux`, and judges it by sequences that it has not seen.

    Processes get it whole, so it holds nothing but where the data lies.
    """

    train: TokenSource
    aux: TokenSource | None
    validation: TokenSource
    outliers: TokenSource | None
    cache: Path

    def __call__(self, detector: Detector) -> Outcome:
        """The outcome for one detector, from the cache where it was fitted before."""
        sets = {_ID: self.validation} | ({} if self.outliers is None else {_AUX: self.outliers})
        done = run(detector, self.train, self.aux, sets, self.cache)
        if done.diverged is not None:
            raise ApoodError(done.diverged)
        separation = held_out = None
        if self.outliers is not None:
            separation = auroc(done.scores[_ID], done.scores[_AUX])
        else:
            held_out = self._held_out(detector, done.scores[_ID])
        return Outcome(separation, held_out, done.fit_seconds, done.warnings)

    def fitted(self, detector: Detector) -> Detector:
        """The fitted detector itself."""
        return fitted(detector, self.train, self.aux, self.cache)

    def _held_out(self, detector: Detector, scores: Scores) -> HeldOut:
        model = self.fitted(detector)
        assert isinstance(model, APOOD)
        if model.score != "sum":
            summed = copy.copy(model)
            summed.score = "sum"
            scores = summed.score_samples(self.validation)
        # s = Σ_j (log |W_j|² - d²_j)
        loss = -float(scores.mean())
        distance = (loss + float(model.log_norms_.double().sum())) / len(model.log_norms_)
        return HeldOut(loss, distance, model.mean_distance_)
