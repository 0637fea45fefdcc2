"""The paper's claims about its tables, to be checked on others."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

from apood.evaluation.result import MEAN
from apood.experiments.paper.findings import Claim
from apood.experiments.paper.trials import Result

__all__ = ["Check", "ahead_of", "best_mean", "rising"]

Check = Callable[[str, Sequence[Result]], Claim | None]
"""Says of one mode's results whether a claim holds; None where the table lacks the rows that it is about."""

Metric = Literal["auroc", "fpr95"]
_NAMES = {"auroc": "AUROC", "fpr95": "FPR95"}


def best_mean(label: str) -> Check:
    """The row has the highest mean AUROC of all methods of the paper in its table."""

    def check(mode: str, results: Sequence[Result]) -> Claim | None:
        others = [r.entry.label for r in results if r.entry.label != label and not r.entry.extra]
        return _compared(f"{label} has the best mean AUROC ({mode})", [label], others, results, "auroc")

    return check


def ahead_of(ahead: Sequence[str], behind: Sequence[str], metric: Metric = "auroc") -> Check:
    """Every row of the first has a better mean than every row of the second."""

    def check(mode: str, results: Sequence[Result]) -> Claim | None:
        sentence = f"{_listed(ahead)} ahead of {_listed(behind)} by mean {_NAMES[metric]} ({mode})"
        return _compared(sentence, ahead, behind, results, metric)

    return check


def rising(what: str, values: Sequence[float]) -> Claim:
    """Each value is at least the one before, and the last is more than the first."""
    sentence = f"{what} rises steadily"
    if len(values) < 2:
        return Claim(sentence, None)
    rises = values[0] < values[-1] and all(one <= after for one, after in pairwise(values))
    return Claim(sentence, rises, ", ".join(f"{value:.2f}" for value in values))


def _compared(
    sentence: str, ahead: Sequence[str], behind: Sequence[str], results: Sequence[Result], metric: Metric
) -> Claim | None:
    """Whether the worst of the first is better than the best of the second; unknown if one of them has failed."""
    rows = {result.entry.label: result for result in results}
    if not behind or not {*ahead, *behind} <= rows.keys():
        return None
    if any(rows[label].failures for label in (*ahead, *behind)):
        return Claim(sentence, None)
    sign = 1 if metric == "auroc" else -1
    means = {label: rows[label].figure(MEAN, metric).mean for label in (*ahead, *behind)}
    worst = min(ahead, key=lambda label: sign * means[label])
    best = max(behind, key=lambda label: sign * means[label])
    because = f"{worst} {means[worst]:.2f}, {best} {means[best]:.2f}"
    return Claim(sentence, sign * means[worst] > sign * means[best], because)


def _listed(labels: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(labels[:-1]), labels[-1]]))
