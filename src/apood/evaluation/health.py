"""The health of a detector: whether held-out in-distribution inputs are treated as its calibration guarantees."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from apood.decisions.conformal import find_rank
from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.contract.base import Detector
from apood.detectors.contract.unseen import count_held_out
from apood.detectors.fusion import Fusion
from apood.pipeline.checks import describe_misuse
from apood.pipeline.copies import keeps_texts
from apood.pipeline.facts import Facts
from apood.pipeline.seen import Seen, count_tokens
from apood.tokens.source import TokenSource

__all__ = ["Finding", "describe_passing", "examine", "find_checks"]

_RARE = 0.01  # a result that chance gives less often than this is a finding
_CUT = 0.05  # share of cut inputs that is a finding
_LENGTHS = 1.5  # ratio of mean lengths that is a finding
_SHIFT = 0.5  # standard deviations between calibration and training inputs that are a finding
_PASSES = 2.0  # an OOD set that is refused less often than this times the ID inputs passes


@dataclass(frozen=True)
class Finding:
    """Something that is wrong or unusual.

    Attributes:
        kind: what it is about: "training", "data", "accept rate", "p-values", "calibration", "lengths" or "cut inputs".
        sentence: what was found, and what to do.
    """

    kind: str
    sentence: str


def examine(detector: Detector, facts: Facts, source: TokenSource, scores: npt.NDArray[np.float64]) -> list[Finding]:
    """Return what is wrong, given in-distribution inputs that neither the fit nor the calibration has seen.

    Args:
        detector: a calibrated detector.
        facts: what is known about its fit and calibration.
        source: the inputs.
        scores: their scores.
    """
    found = [Finding("training", sentence) for sentence in _list_fit_warnings(detector)]
    found += [Finding("data", sentence) for sentence in describe_misuse(source, facts, "held-out")]
    found += _compare_accept_rate(detector, scores)
    found += _compare_scores(detector, scores)
    if isinstance(detector, Fusion):
        found += _compare_calibration(detector, facts)
    if facts.training is not None and facts.calibration is not None:
        found += _compare_lengths(facts.training, facts.calibration)
    return found + _count_cut(detector, source)


def _list_fit_warnings(detector: Detector) -> list[str]:
    """Return what the fit warned of, for a fusion with the names of the members."""
    if isinstance(detector, Fusion):
        return [f"{own.name}: {said}" for own in detector.members_ for said in _list_fit_warnings(own)]
    return detector.fit_warnings_ if isinstance(detector, APOOD) else []


def describe_passing(refused: Mapping[str, float], accept: float) -> list[str]:
    """Return a sentence about the OOD sets that the detector hardly refuses more often than ID inputs, if any.

    Args:
        refused: the share of each OOD set that is refused.
        accept: the accept rate.
    """
    passing = {name: share for name, share in refused.items() if share < _PASSES * (1 - accept)}
    if not passing:
        return []
    named = ", ".join(f"{name} ({share:.1%} refused)" for name, share in passing.items())
    return [
        f"The detector lets almost all of {named} through. Try texts of that kind as outliers (--aux of `apood build` "
        "and `apood fit`), other layers (--layers of `apood embed`) or another model, and see with `apood compare` "
        "whether another method finds them."
    ]


def find_checks(detector: Detector, facts: Facts, source: TokenSource) -> dict[str, bool]:
    """Return what `examine` can check, and whether enough is known about the detector and the inputs to check it."""
    return {
        "the accept rate": True,
        "p-values": True,
        **({"calibration": _has_whole_inputs(facts)} if isinstance(detector, Fusion) else {}),
        "copies of training texts": facts.sketches is not None and keeps_texts(source),
        "lengths": facts.calibration is not None,
        "cut inputs": detector.encoder_ is not None,
    }


def _compare_accept_rate(detector: Detector, scores: npt.NDArray[np.float64]) -> list[Finding]:
    """Return a finding if more inputs are refused than chance explains.

    The calibration scores are a sample as well: with n of them, the share that is refused has a Beta distribution. So
    the number of refused inputs is Beta-binomial.
    """
    from scipy.stats import betabinom

    calibration = detector.calibration
    known, count = len(calibration.scores), len(scores)
    refused = int((~calibration.accepts(scores)).sum())
    rank = find_rank(known, calibration.accept)
    chance = float(betabinom.sf(refused - 1, count, rank, known + 1 - rank))
    if chance >= _RARE:
        return []
    return [
        Finding(
            "accept rate",
            f"{refused / count:.1%} of {count:,} held-out inputs are refused, and the calibration guarantees "
            f"{1 - calibration.accept:.1%} at most (p = {chance:.2g}): the inputs are unlike those "
            "that set the threshold; calibrate with inputs like these.",
        )
    ]


def _compare_scores(detector: Detector, scores: npt.NDArray[np.float64]) -> list[Finding]:
    """Return a finding if the scores are distributed unlike the calibration scores, so p-values are not uniform."""
    from scipy.stats import ks_2samp

    result = ks_2samp(scores, detector.calibration.scores, method="asymp")
    if result.pvalue >= _RARE:
        return []
    side = "higher" if np.median(scores) > np.median(detector.calibration.scores) else "lower"
    return [
        Finding(
            "p-values",
            f"Scores of held-out inputs are {side} than those of the calibration (Kolmogorov-Smirnov distance "
            f"{result.statistic:.2f}, p = {result.pvalue:.2g}), so p-values are not uniform: held-out and calibration "
            "inputs are not exchangeable; draw both at random from the same inputs.",
        )
    ]


def _compare_calibration(detector: Fusion, facts: Facts) -> list[Finding]:
    """Return a finding if the calibration scores are unlike those of training inputs that no member had seen.

    A fusion is scaled so that the latter are 0 on average. How many they were is known approximately.
    """
    from scipy.stats import norm

    scores = detector.calibration.scores
    if not _has_whole_inputs(facts) or not np.isfinite(scores).all():
        return []
    unseen = count_held_out(0 if facts.training is None else facts.training.documents)
    shift = float(scores.mean() / max(scores.std(), 1e-12))
    chance = 2 * float(norm.sf(abs(shift) / np.sqrt(1 / len(scores) + 1 / unseen)))
    if abs(shift) < _SHIFT or chance >= _RARE:
        return []
    side, reason = (
        ("higher", "texts of the fit are among them, or copies of these")
        if shift > 0
        else ("lower", "they are of another kind, so the threshold lets too much through")
    )
    return [
        Finding(
            "calibration",
            f"Scores of the calibration inputs are {side} than those of training inputs that were held out, by "
            f"{abs(shift):.1f} standard deviations (p = {chance:.2g}): perhaps {reason}; draw training and calibration "
            "inputs at random from the same inputs, as `apood build` does.",
        )
    ]


def _has_whole_inputs(facts: Facts) -> bool:
    """Return whether no calibration input has several windows, of which the worst would count."""
    return facts.calibration is not None and facts.calibration.sequences == facts.calibration.documents


def _compare_lengths(training: Seen, calibration: Seen) -> list[Finding]:
    """Return a finding if the inputs that set the threshold are much longer or shorter than those of the fit."""
    if not (training.documents and calibration.documents and training.tokens and calibration.tokens):
        return []
    learnt, judged = (seen.tokens / seen.documents for seen in (training, calibration))
    if max(learnt, judged) < _LENGTHS * min(learnt, judged):
        return []
    return [
        Finding(
            "lengths",
            f"Training inputs have {learnt:.0f} tokens on average, and calibration inputs {judged:.0f}: short inputs "
            "look stranger than long ones; calibrate with inputs of the lengths that the detector is used on.",
        )
    ]


def _count_cut(detector: Detector, source: TokenSource) -> list[Finding]:
    """Return a finding if many inputs are as long as the encoder takes, and it keeps only their beginnings."""
    identity = detector.encoder_ or {}
    limit = identity.get("max_tokens")
    if not limit or identity.get("on_long") is not None:
        return []
    share = float((count_tokens(source) >= int(limit)).mean())
    if share <= _CUT:
        return []
    return [
        Finding(
            "cut inputs",
            f"{share:.1%} of the held-out inputs have {int(limit):,} tokens, the most that the encoder takes, so only "
            "their beginnings are judged; embed with windows, or with a larger limit.",
        )
    ]
