"""Experiments: which rows are fitted on which task, and how their results are shown and checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from apood.evaluation.result import MEAN
from apood.experiments.paper.claims import Check, check_claims
from apood.experiments.paper.findings import Findings
from apood.experiments.paper.model_facts import ModelFacts
from apood.experiments.paper.published import Published, read_published
from apood.experiments.paper.study_data import Row, RowResult, StudyData, TableContext
from apood.experiments.paper.tables import make_tables
from apood.experiments.paper.tasks import SHARE, Mode, Task
from apood.report.pictures import Dot, draw_dots

__all__ = ["Experiment", "TableExperiment", "make_dots", "results_to_json"]


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        name: the name of its command.
        task: its model and data sets.
        seeds: the number of splits by default.
        modes: the modes that it looks at, in the order of its tables.
        one_mode: whether it looks only at the first of these modes that the model has.
        needs_aux: whether it learns from AUX sequences.
        train_share: the share of the ID training store that a split draws.
    """

    name: str
    task: Task
    seeds: int = field(default=5, kw_only=True)
    modes: tuple[Mode, ...] = field(default=("input", "output"), kw_only=True)
    one_mode: bool = field(default=False, kw_only=True)
    needs_aux: bool = field(default=False, kw_only=True)
    train_share: float = field(default=SHARE, kw_only=True)

    def modes_of(self, model: ModelFacts) -> list[Mode]:
        """Return the modes that it looks at with a model."""
        found = [mode for mode in self.modes if mode in model.modes]
        return found[:1] if self.one_mode else found

    def rows(self, context: TableContext) -> Sequence[Row]:
        """Return the rows that are fitted for a mode."""
        raise NotImplementedError

    def run(self, study: StudyData) -> Findings:
        """Fit and score the rows, and return the findings."""
        raise NotImplementedError


@dataclass(frozen=True)
class TableExperiment(Experiment):
    """A table with a row per method.

    Attributes:
        table_rows: the rows, or a function that returns those of a mode's table.
        checks: the paper's claims about it.
    """

    table_rows: Sequence[Row] | Callable[[TableContext], Sequence[Row]]
    checks: Sequence[Check] = ()

    def rows(self, context: TableContext) -> Sequence[Row]:
        """Return the rows of the table."""
        return self.table_rows(context) if callable(self.table_rows) else self.table_rows

    def run(self, study: StudyData) -> Findings:
        """Return a table per mode, a figure of the means, and the claims."""
        paper = read_published(self.name)
        results = study.run({mode: self.rows(study.context(mode)) for mode in study.modes})
        shared = [] if paper is None else paper.shared(study.data.ood)
        others = f"; the paper's over {', '.join(shared)}" if shared and len(shared) < len(study.data.ood) else ""
        return Findings(
            results_to_json(results, paper, study),
            make_tables(study, results, paper),
            {"figure": lambda: draw_dots(make_dots(results, paper, study), f"mean AUROC, %{others}")},
            check_claims(self.checks, results),
        )


def results_to_json(
    results: Sequence[RowResult], paper: Published | None, study: StudyData, tabled: Sequence[RowResult] | None = None
) -> dict[str, object]:
    """Return all results and selections; results in `tabled` (by default all) with the paper's figures beside them."""
    rows = []
    for result in results:
        content = result.to_json()
        known = paper if tabled is None or result in tabled else None
        for dataset, metrics in content.get("results", {}).items():
            theirs = (
                None if known is None else known.figures(result.entry.mode, result.entry.label, dataset, study.data.ood)
            )
            for metric, figures in metrics.items():
                figures["paper"] = None if theirs is None else getattr(theirs, metric)
        rows.append(content)
    selections = [{"mode": mode, **selection.to_json()} for (mode, *_), selection in study.selections.items()]
    return {"rows": rows, "selections": selections}


def make_dots(results: Sequence[RowResult], paper: Published | None, study: StudyData) -> dict[str, list[Dot]]:
    """Return the mean AUROC of every row without failures, by mode."""
    panels: dict[str, list[Dot]] = {}
    for result in (result for result in results if not result.failures):
        label, (value, reach) = result.entry.label, result.summarize(MEAN, "auroc")
        theirs = None if paper is None else paper.figures(result.entry.mode, label, MEAN, study.data.ood)
        parts = [result.summarize(name, "auroc").mean for name in study.data.ood]
        dot = Dot(label, value, reach, parts, None if theirs is None else theirs.auroc)
        panels.setdefault(f"{result.entry.mode.capitalize()} OOD", []).append(dot)
    return panels
