"""The paper's claims about its tables, checked on results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from apood.evaluation.result import MEAN
from apood.experiments.paper.study_data import RowResult

__all__ = ["Check", "Claim", "check_claims", "claim_ahead_of", "claim_best_mean", "claim_rising"]

Metric = Literal["auroc", "fpr95"]
_NAMES = {"auroc": "AUROC", "fpr95": "FPR95"}


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and whether it holds here; `holds` is None if the results do not decide it."""

    sentence: str
    holds: bool | None
    because: str = ""

    @property
    def verdict(self) -> str:
        """Whether it holds, in words."""
        return {True: "held here", False: "not held here", None: "undecided here"}[self.holds]

    @property
    def reason(self) -> str:
        """The figures that decide it, in parentheses; empty without any."""
        return f" ({self.because})" if self.because else ""


Check = Callable[[str, Sequence[RowResult]], Claim | None]
"""Checks a claim on the results of one mode; returns None if the table lacks the rows that the claim is about."""


def check_claims(checks: Sequence[Check], results: Sequence[RowResult]) -> list[Claim]:
    """Return the claims of every mode whose table has the rows that they are about."""
    modes = dict.fromkeys(result.entry.mode for result in results)
    found = [
        check(mode, [result for result in results if result.entry.mode == mode]) for mode in modes for check in checks
    ]
    return [claim for claim in found if claim is not None]


def claim_best_mean(label: str) -> Check:
    """Return the check that the row has the highest mean AUROC among the paper's methods."""

    def check(mode: str, results: Sequence[RowResult]) -> Claim | None:
        others = [r.entry.label for r in results if r.entry.label != label and not r.entry.extra]
        return _compare(f"{label} has the best mean AUROC ({mode})", [label], others, results, "auroc")

    return check


def claim_ahead_of(ahead: Sequence[str], behind: Sequence[str], metric: Metric = "auroc") -> Check:
    """Return the check that each of the first rows has a better mean than each of the second."""

    def check(mode: str, results: Sequence[RowResult]) -> Claim | None:
        sentence = f"{_join(ahead)} ahead of {_join(behind)} by mean {_NAMES[metric]} ({mode})"
        return _compare(sentence, ahead, behind, results, metric)

    return check


def claim_rising(what: str, values: Sequence[float]) -> Claim:
    """Return the claim that no value is below the one before and the last is above the first."""
    sentence = f"{what} rises steadily"
    if len(values) < 2:
        return Claim(sentence, None)
    rises = values[0] < values[-1] and all(one <= after for one, after in pairwise(values))
    return Claim(sentence, rises, ", ".join(f"{value:.2f}" for value in values))


def _compare(
    sentence: str, ahead: Sequence[str], behind: Sequence[str], results: Sequence[RowResult], metric: Metric
) -> Claim | None:
    """Return whether the worst of the first is better than the best of the second; undecided if one has failed."""
    rows = {result.entry.label: result for result in results}
    if not behind or not {*ahead, *behind} <= rows.keys():
        return None
    if any(rows[label].failures for label in (*ahead, *behind)):
        return Claim(sentence, None)
    sign = 1 if metric == "auroc" else -1
    means = {label: rows[label].summarize(MEAN, metric).mean for label in (*ahead, *behind)}
    worst = min(ahead, key=lambda label: sign * means[label])
    best = max(behind, key=lambda label: sign * means[label])
    because = f"{worst} {means[worst]:.2f}, {best} {means[best]:.2f}"
    return Claim(sentence, sign * means[worst] > sign * means[best], because)


def _join(labels: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(labels[:-1]), labels[-1]]))
