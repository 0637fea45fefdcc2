"""Scores of inputs and outputs as a guard needs them, and the decisions that follow."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from apood.detectors.contract.base import Detector, Scores
from apood.detectors.contract.data_checks import find_nonempty, get_required_parts
from apood.encoders.text.encoder import PreparedTexts
from apood.tokens.batch import TokenBatch

__all__ = ["Judged", "Verdict", "decide", "find_owners", "score_states"]


@dataclass(frozen=True)
class Judged:
    """The scores of texts.

    Attributes:
        scores: the score of each text, that of its worst window; -inf if it could not be scored.
        problems: why a text could not be scored, as in "is too short to be scored"; None if it could.
        windows: the number of windows of each text.
    """

    scores: Scores
    problems: Sequence[str | None]
    windows: Sequence[int]

    @classmethod
    def gather(cls, count: int, owners: Sequence[int], parts: Sequence["Judged"], refused: dict[int, str]) -> "Judged":
        """Return the scores of `count` texts from those of their windows; `owners` has the text of each window.

        What cannot be judged is refused: a text has the score -inf if it has no window, or if a score is NaN.
        """
        windows = np.bincount(np.asarray(owners, dtype=np.int64), minlength=count)
        scores = np.where(windows > 0, np.inf, -np.inf)
        problems = [refused.get(index, None if windows[index] else "could not be scored") for index in range(count)]
        scores[[*refused]] = -np.inf
        of_windows = [pair for part in parts for pair in zip(part.scores.tolist(), part.problems, strict=True)]
        for owner, (score, problem) in zip(owners, of_windows, strict=True):
            if np.isnan(score):
                score, problem = -np.inf, problem or "has a score that is not a number"
            scores[owner] = min(scores[owner], score)
            problems[owner] = problems[owner] or problem
        return cls(scores, problems, windows.tolist())

    def select(self, indices: Sequence[int]) -> "Judged":
        """Return the scores of the texts at these indices."""
        chosen = list(indices)
        return Judged(self.scores[chosen], [self.problems[i] for i in chosen], [self.windows[i] for i in chosen])


def score_states(detector: Detector, tokens: TokenBatch) -> Judged:
    """Return one score per sequence, whether it is a text or a window of one."""
    tokens = replace(tokens, channels={name: tokens.channels[name] for name in detector.requires - {"tokens"}})
    parts = get_required_parts(tokens, detector.requires).values()
    finite = torch.tensor([[bool(rows.isfinite().all()) for rows in part] for part in parts]).all(0)
    nonempty = find_nonempty(tokens, detector.requires)
    # States that overflow are another sign of an out-of-distribution input, so they are refused without an error.
    scores, usable = np.full(len(tokens), -np.inf), nonempty & finite
    if bool(usable.any()):
        scores[usable.numpy()] = detector.score_samples(tokens.select(usable))
    problems = [
        "is too short to be scored" if not scorable else None if sound else "has states that are not finite"
        for scorable, sound in zip(nonempty.tolist(), finite.tolist(), strict=True)
    ]
    return Judged(scores, problems, [1] * len(tokens))


def find_owners(prepared: PreparedTexts) -> list[int]:
    """Return the index of the text of each sequence."""
    refused, count = prepared.refused, len(prepared.sources)
    numbers = np.zeros(count) if prepared.windows is None else prepared.windows.numpy()
    kept = [index for index in range(count + len(refused)) if index not in refused]
    return [kept[at] for at in np.cumsum(numbers == 0) - 1]


class Verdict(NamedTuple):
    """A detector's decision on one text."""

    accepted: bool
    score: float
    threshold: float
    p_value: float
    reason: str | None
    windows: int


def decide(detector: Detector, judged: Judged, what: str) -> list[Verdict]:
    """Return the decisions on texts; `what` is what they are, for the reasons."""
    calibration = detector.calibration  # read once, because another thread may calibrate the detector meanwhile
    scores = judged.scores
    accepts, p_values = calibration.accepts(scores), calibration.p_values(scores)
    # all sentences of a text are compared in its first window, so that its score says nothing about this window
    also = "sentences and " if "sentences" in detector.requires else ""
    verdicts = []
    for index, (accepted, score, p_value) in enumerate(
        zip(accepts.tolist(), scores.tolist(), p_values.tolist(), strict=True)
    ):
        problem, windows = judged.problems[index], judged.windows[index]
        part = f" in the worst of its {also}{windows} windows" if windows > 1 else ""
        problem = problem or (
            f"is out-of-distribution: its score {score:.4g}{part} is below the threshold {calibration.threshold:.4g}"
        )
        reason = None if accepted else f"The {what} {problem}."
        verdicts.append(Verdict(accepted, score, calibration.threshold, p_value, reason, windows))
    return verdicts
