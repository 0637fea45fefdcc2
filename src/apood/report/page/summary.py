"""What a report says, as JSON values: the page is made from them alone, and the JSON file holds them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from apood.decisions.conformal import Calibration
from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.contract.base import Detector
from apood.detectors.fusion import Fusion
from apood.evaluation.metrics import auroc, fpr95
from apood.explain.text_explanation import TextExplanation
from apood.support.errors import InputError
from apood.support.provenance import package_versions

__all__ = ["Role", "ScoredSet", "summarise"]

Role = Literal["ID", "OOD", "new"]
"""What is known about a set: in-distribution, out-of-distribution, or nothing."""

_ACCEPT_RATES = (0.8, 0.9, 0.95, 0.98, 0.99)
_BINS = 60
_TAIL = 0.005  # share of the scores at either end that a picture leaves out
_CURVE_POINTS = 200
_DOTS = 500  # per set, in the picture of scores against lengths
_COLLAPSED = 0.9  # cosine of two heads that look at the same thing


@dataclass(frozen=True)
class ScoredSet:
    """A set of inputs with their scores.

    Attributes:
        name: the name of the set.
        role: "ID", "OOD" or "new".
        scores: one per input; -inf for an input without tokens.
        tokens: the number of tokens of each input.
    """

    name: str
    role: Role
    scores: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.int64]


def summarise(
    detector: Detector,
    facts: Mapping[str, Any],
    sets: Sequence[ScoredSet],
    foreign: Sequence[tuple[str, int, TextExplanation]],
    command: str,
    findings: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the content of a report.

    Args:
        detector: a calibrated detector.
        facts: what is known about its fit and calibration: `training` and `calibration`, each with numbers.
        sets: the sets, one of them of the role ID.
        foreign: the most foreign inputs: the name of the set, the number in it, and the explanation.
        command: the command that makes the report again.
        findings: sentences about what is wrong or unusual.
    """
    calibration = detector.calibration
    known = next(one for one in sets if one.role == "ID")
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "versions": package_versions(),
        "detector": _describe_detector(detector, facts),
        "findings": list(findings),
        "calibration": _describe_calibration(calibration, sets),
        "sets": [_describe_set(one, calibration) for one in sets],
        "metrics": [_measure(known, one) for one in sets if one.role == "OOD"],
        "distributions": _make_histograms(sets),
        "roc": [{"set": one.name, "points": _trace_roc(known, one)} for one in sets if one.role == "OOD"],
        "lengths": [{"set": one.name, "points": _sample_lengths(one)} for one in sets],
        "foreign": [{"set": name, "index": number, **one.to_json()} for name, number, one in foreign],
        "training": [_describe_training(name, member) for name, member in _find_attention(detector)],
        "heads": [_describe_heads(name, member) for name, member in _find_attention(detector)],
    }


def _describe_detector(detector: Detector, facts: Mapping[str, Any]) -> dict[str, Any]:
    members = detector.members_ if isinstance(detector, Fusion) else []
    return {
        "method": detector.name,
        "parameters": {name: repr(value) for name, value in detector.get_params(deep=False).items()},
        "members": [repr(member) for member in members],
        "encoder": {name: str(value) for name, value in (detector.encoder_ or {}).items()},
        "fitted_on": detector.fitted_on_,
        "training": facts.get("training"),
        "calibration": facts.get("calibration"),
    }


def _describe_calibration(calibration: Calibration, sets: Sequence[ScoredSet]) -> dict[str, Any]:
    rows = []
    for accept in sorted({*_ACCEPT_RATES, calibration.accept}):
        try:
            other = Calibration.from_scores(calibration.scores, accept, coarse=calibration.coarse)
        except InputError:  # too few calibration scores for this accept rate
            continue
        refused = {one.name: int((~other.accepts(one.scores)).sum()) for one in sets}
        rows.append({"accept": accept, "threshold": float(other.threshold), "refused": refused})
    return {
        "accept": calibration.accept,
        "threshold": float(calibration.threshold),
        "scores": len(calibration.scores),
        "table": rows,
    }


def _describe_set(one: ScoredSet, calibration: Calibration) -> dict[str, Any]:
    finite = one.scores[np.isfinite(one.scores)]
    middle = np.quantile(finite, [0.05, 0.5, 0.95]).tolist() if len(finite) else [None] * 3
    return {
        "name": one.name,
        "role": one.role,
        "inputs": len(one.scores),
        "refused": int((~calibration.accepts(one.scores)).sum()),
        "without_score": int(len(one.scores) - len(finite)),
        "scores": middle,
        "tokens": np.quantile(one.tokens, [0.05, 0.5, 0.95]).tolist() if len(one.tokens) else [None] * 3,
    }


def _measure(known: ScoredSet, one: ScoredSet) -> dict[str, Any]:
    return {
        "set": one.name,
        "auroc": list(auroc(known.scores, one.scores)),
        "fpr95": list(fpr95(known.scores, one.scores)),
    }


def _make_histograms(sets: Sequence[ScoredSet]) -> dict[str, Any]:
    """Return the shares of inputs per bin of the score; the outermost bins hold everything beyond."""
    finite = [one.scores[np.isfinite(one.scores)] for one in sets]
    together = np.concatenate(finite)
    low, high = np.quantile(together, [_TAIL, 1 - _TAIL]).tolist() if len(together) else (0.0, 1.0)
    edges = np.linspace(low, high if high > low else low + max(1.0, 1e-9 * abs(low)), _BINS + 1)
    shares = {
        one.name: (np.histogram(own.clip(edges[0], edges[-1]), edges)[0] / max(len(own), 1)).round(5).tolist()
        for one, own in zip(sets, finite, strict=True)
    }
    return {"edges": edges.tolist(), "shares": shares}


def _trace_roc(known: ScoredSet, one: ScoredSet) -> list[list[float]]:
    """Return points of the ROC curve: the share of OOD inputs and of ID inputs above falling thresholds."""
    thresholds = np.unique(np.concatenate([known.scores, one.scores]))[::-1]
    if len(thresholds) > _CURVE_POINTS:
        thresholds = thresholds[np.linspace(0, len(thresholds) - 1, _CURVE_POINTS).astype(int)]
    shares = [
        1 - np.searchsorted(np.sort(own), thresholds, side="left") / len(own) for own in (one.scores, known.scores)
    ]
    return [[0.0, 0.0], *np.stack(shares, 1).round(4).tolist(), [1.0, 1.0]]


def _sample_lengths(one: ScoredSet) -> list[list[float]]:
    """Return the number of tokens and the score of some inputs."""
    finite = np.flatnonzero(np.isfinite(one.scores))
    chosen = finite[np.linspace(0, len(finite) - 1, min(len(finite), _DOTS)).astype(int)] if len(finite) else finite
    return [[int(one.tokens[n]), round(float(one.scores[n]), 3)] for n in chosen]


def _find_attention(detector: Detector) -> list[tuple[str, APOOD]]:
    members = detector.members_ if isinstance(detector, Fusion) else [detector]
    return [(member.name, member) for member in members if isinstance(member, APOOD)]


def _describe_training(name: str, member: APOOD) -> dict[str, Any]:
    return {
        "member": name,
        "curve": [list(point) for point in member.training_curve_.points],
        "warnings": member.fit_warnings_,
    }


def _describe_heads(name: str, member: APOOD) -> dict[str, Any]:
    heads, queries, _ = member.queries_.shape
    flat = member.queries_.double().flatten(1)
    flat = flat / flat.norm(dim=1, keepdim=True).clamp_min(1e-30)
    cosines = (flat @ flat.T).abs().fill_diagonal_(0)
    return {
        "member": name,
        "heads": heads,
        "queries": queries,
        "beta": member.beta_,
        "mean_distance": member.mean_distance_,
        "collapsed": int((cosines.amax(1) > _COLLAPSED).sum()) if heads > 1 else 0,
    }
