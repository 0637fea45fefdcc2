"""The paper's claims about its tables, to be checked on others."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from apood.experiments.paper.findings import Claim
from apood.experiments.paper.trials import Result, mean_auroc

__all__ = ["Check", "ahead_of", "best_mean", "rising"]

Check = Callable[[str, Sequence[Result]], Claim]
"""Says of one mode's results whether a claim holds."""


def best_mean(label: str) -> Check:
    """The row has the highest mean AUROC of its table."""

    def check(mode: str, results: Sequence[Result]) -> Claim:
        sentence = f"{label} has the best mean AUROC ({mode})"
        means = _means(results)
        others = {name: mean for name, mean in means.items() if name != label}
        if label not in means or not others:
            return Claim(sentence, None)
        best = max(others, key=lambda name: others[name])
        because = f"{label} {means[label]:.1f}, {best} {others[best]:.1f}"
        return Claim(sentence, means[label] > others[best], because)

    return check


def ahead_of(ahead: Sequence[str], behind: Sequence[str]) -> Check:
    """Every row of the first has a higher mean AUROC than every row of the second."""

    def check(mode: str, results: Sequence[Result]) -> Claim:
        sentence = f"{' and '.join(ahead)} ahead of {' and '.join(behind)} by mean AUROC ({mode})"
        means = _means(results)
        first = [name for name in ahead if name in means]
        second = [name for name in behind if name in means]
        if not first or not second:
            return Claim(sentence, None)
        low, high = min(first, key=lambda name: means[name]), max(second, key=lambda name: means[name])
        because = f"{low} {means[low]:.1f}, {high} {means[high]:.1f}"
        return Claim(sentence, means[low] > means[high], because)

    return check


def rising(what: str, values: Sequence[float]) -> Claim:
    """Each value is at least the one before."""
    sentence = f"{what} rises steadily"
    if len(values) < 2:
        return Claim(sentence, None)
    rises = all(one <= after for one, after in pairwise(values))
    return Claim(sentence, rises, ", ".join(f"{value:.1f}" for value in values))


def _means(results: Sequence[Result]) -> dict[str, float]:
    return {result.entry.label: mean_auroc(result) for result in results if not result.failures}
