"""Comparisons of methods on stores."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apood.evaluation.comparison_plan import ComparisonPlan, check_plan, draw_splits
from apood.evaluation.result import MEAN, Result
from apood.evaluation.study import run_study
from apood.support.checks import check_integer
from apood.support.version import __version__

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True)
class Comparison:
    """The results of a plan.

    Attributes:
        plan: the checked plan.
        results: one for each entry of the plan, in its order.
    """

    plan: ComparisonPlan
    results: list[Result]

    @property
    def datasets(self) -> list[str]:
        """The OOD sets and, last, their mean."""
        return [*self.plan.ood, MEAN]

    def to_json(self) -> dict[str, Any]:
        """Return all figures as plain JSON; metrics are in percent."""
        plan = self.plan
        return {
            "apood": __version__,
            "splits": plan.splits,
            "share": plan.share,
            "seed": plan.seed,
            "stores": {key: str(folder) for key, folder in plan.stores.items()},
            **({} if plan.id is None else {"test_share": plan.test_share}),
            "methods": [result.to_json() for result in self.results],
        }


def compare(plan: ComparisonPlan, *, cache: Path | None = None, jobs: int = 1) -> Comparison:
    """Fit and evaluate every entry of the plan on every split.

    Fits and scores are kept in `cache`, so that an interrupted comparison continues and a changed plan costs only what
    is new; None keeps nothing. With several `jobs`, as many processes share the cores, and the measured seconds are
    those of processes that slow each other down. An entry that cannot be fitted or scored has `failures` instead of
    figures and stops no other; if all fail, an InputError is raised.
    """
    plan = check_plan(plan)
    check_integer("jobs", jobs, 1)
    splits = draw_splits(plan)
    entries = [(entry, splits) for entry in plan.methods]
    results = run_study(entries, cache=cache, jobs=jobs if jobs > 1 else None, what="methods", label="compare")
    return Comparison(plan, results)
