"""What every experiment on tables is: rows on sets, and what of them is drawn and claimed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from apood.evaluation.result import MEAN
from apood.experiments.paper.claims import Check
from apood.experiments.paper.entries import Entry
from apood.experiments.paper.findings import Claim, Draw, Findings
from apood.experiments.paper.model import Model
from apood.experiments.paper.published import Published, published
from apood.experiments.paper.settings import SHARE
from apood.experiments.paper.study import Scene, Study
from apood.experiments.paper.tables import tables_of
from apood.experiments.paper.tasks import Mode, Task
from apood.experiments.paper.trials import Result, carry_out
from apood.report.dots import Dot, dots_of

__all__ = ["Bench", "Experiment", "checked", "dot_panels", "results_as_json"]

Rows = Callable[[Scene], Sequence[Entry]]


@dataclass(frozen=True)
class Experiment:
    """What all experiments have in common.

    Attributes:
        name: of its command.
        task: what it is about.
        seeds: how many splits it has unless the user says.
        modes: those of the task that it looks at, in the order of its tables.
        one_mode: whether it looks at the first of them alone that the model has.
        needs_aux: whether it learns from AUX sequences.
        train_share: how much of the ID training store a split draws.
    """

    name: str
    task: Task
    seeds: int = field(default=5, kw_only=True)
    modes: tuple[Mode, ...] = field(default=("input", "output"), kw_only=True)
    one_mode: bool = field(default=False, kw_only=True)
    needs_aux: bool = field(default=False, kw_only=True)
    train_share: float = field(default=SHARE, kw_only=True)

    def modes_of(self, model: Model) -> list[Mode]:
        """Those that it looks at with a model."""
        found = [mode for mode in self.modes if mode in model.modes]
        return found[:1] if self.one_mode else found

    def rows(self, scene: Scene) -> Sequence[Entry]:
        """The rows that are fitted for a mode, for the plan."""
        raise NotImplementedError

    def carry_out(self, study: Study) -> Findings:
        """Fits, scores, and says what came of it."""
        raise NotImplementedError


@dataclass(frozen=True)
class Bench(Experiment):
    """A table: which rows, and which of the paper's claims to check.

    Attributes:
        entries: the rows of a mode's table.
        checks: the claims.
    """

    entries: Rows
    checks: Sequence[Check] = ()

    def rows(self, scene: Scene) -> Sequence[Entry]:
        """The rows of the table."""
        return self.entries(scene)

    def carry_out(self, study: Study) -> Findings:
        """The table, a picture of its means, and the claims."""
        paper = published(self.name)
        results = carry_out(study, {mode: self.entries(study.scene(mode)) for mode in study.modes})
        return Findings(
            results_as_json(results, paper, study),
            tables_of(study, results, paper),
            {"figure": _figure(results, paper, study)},
            checked(self.checks, results),
        )


def checked(checks: Sequence[Check], results: Sequence[Result]) -> list[Claim]:
    """What the checks say of every mode whose table has the rows that they are about."""
    modes = dict.fromkeys(result.mode for result in results)
    said = [check(mode, [result for result in results if result.mode == mode]) for mode in modes for check in checks]
    return [claim for claim in said if claim is not None]


def results_as_json(
    results: Sequence[Result], paper: Published | None, study: Study, tabled: Sequence[Result] | None = None
) -> dict[str, object]:
    """Every figure, which settings were chosen how, and beside rows that are `tabled` (or all) what the paper has."""
    rows = []
    for result in results:
        content = result.as_json()
        known = paper if tabled is None or result in tabled else None
        for dataset, metrics in content.get("results", {}).items():
            theirs = None if known is None else known.figures(result.mode, result.entry.label, dataset, study.ood)
            for metric, figures in metrics.items():
                figures["paper"] = None if theirs is None else getattr(theirs, metric)
        rows.append(content)
    selections = [{"mode": mode, **selection.as_json()} for (mode, _), selection in study.selections.items()]
    return {"rows": rows, "selections": selections}


def _figure(results: Sequence[Result], paper: Published | None, study: Study) -> Draw:
    shared = [] if paper is None else paper.shared(study.ood)
    others = f"; the paper's over {', '.join(shared)}" if shared and len(shared) < len(study.ood) else ""
    return lambda: dots_of(dot_panels(results, paper, study), f"mean AUROC, %{others}")


def dot_panels(results: Sequence[Result], paper: Published | None, study: Study) -> dict[str, list[Dot]]:
    """The mean AUROC of every row that has one, by mode."""
    panels: dict[str, list[Dot]] = {}
    for result in (result for result in results if not result.failures):
        label, (value, reach) = result.entry.label, result.figure(MEAN, "auroc")
        theirs = None if paper is None else paper.figures(result.mode, label, MEAN, study.ood)
        parts = [result.figure(name, "auroc").mean for name in study.ood]
        dot = Dot(label, value, reach, parts, None if theirs is None else theirs.auroc)
        panels.setdefault(f"{result.mode.capitalize()} OOD", []).append(dot)
    return panels
