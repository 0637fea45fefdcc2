"""Figure 4: AP-OOD with more and more heads and queries, each with its best beta."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from apood.evaluation.result import MEAN
from apood.experiments.paper.claims import Claim, claim_rising
from apood.experiments.paper.experiment import Experiment, results_to_json
from apood.experiments.paper.findings import Findings, Table
from apood.experiments.paper.published import BEST_SCALING, read_published
from apood.experiments.paper.study_data import Row, RowResult, StudyData, TableContext
from apood.experiments.paper.tables import describe_left_out, format_spread
from apood.experiments.paper.tasks import SUMMARIZATION, Settings, resolve_beta
from apood.report.comparison import describe_fits, make_row_name
from apood.report.grid import Block, Cell, Figure, Grid
from apood.report.heatmap import HeatCell, draw_heatmap

__all__ = ["EXPERIMENTS"]

_HEADS, _QUERIES = (1, 16, 128, 1024), (1, 4, 16)
_ALL_OF_XSUM = 204_045
_BestResults = dict[tuple[int, int], RowResult]  # with the best beta, by M and T


@dataclass(frozen=True)
class ScalingExperiment(Experiment):
    """Two heat maps over M and T: the mean AUROC with the best beta, and that beta."""

    def rows(self, context: TableContext) -> Sequence[Row]:
        """Return a row for every M, T and beta."""
        betas = sorted({resolve_beta(beta, context.dim) for beta in context.settings.betas})
        return [
            Row("ap-ood", {"heads": m, "queries": t, "beta": beta}, f"M = {m} and T = {t} with β = {beta:.3g}")
            for m in _HEADS
            for t in _QUERIES
            for beta in betas
        ]

    def run(self, study: StudyData) -> Findings:
        """Return the results with the beta that has the highest mean AUROC over the OOD sets, as in the paper."""
        (mode,) = study.modes
        results = study.run({mode: self.rows(study.context(mode))})
        best: _BestResults = {}
        for result in (result for result in results if not result.failures):
            size = result.parameters["heads"], result.parameters["queries"]
            if size not in best or result.mean_auroc > best[size].mean_auroc:
                best[size] = result
        figures = {
            "figure-auroc": lambda: _draw_heatmap({size: r.mean_auroc for size, r in best.items()}, "mean AUROC, %"),
            "figure-beta": lambda: _draw_heatmap({size: r.parameters["beta"] for size, r in best.items()}, "best β"),
        }
        table = Table("Mean AUROC and best β", _make_grid(results, best, study))
        return Findings(results_to_json(results, None, study), [table], figures, _check(best))


def _draw_heatmap(values: dict[tuple[int, int], float], label: str) -> object:
    cells = [HeatCell({"M": heads, "T": queries}, value) for (heads, queries), value in values.items()]
    return draw_heatmap(cells, title="AP-OOD by heads M and queries T", label=label)


def _make_grid(results: Sequence[RowResult], best: _BestResults, study: StudyData) -> Grid:
    cells: dict[tuple[str, str], Cell] = {}
    for (heads, queries), result in best.items():
        theirs = f" ({BEST_SCALING:.1f})" if (heads, queries) == (_HEADS[-1], _QUERIES[-1]) else ""
        figure = Figure(make_row_name(result, format_spread(result.summarize(MEAN, "auroc")) + theirs))
        cells[f"M = {heads}", f"T = {queries}"] = (figure, Figure(f"β = {result.parameters['beta']:.3g}"))
    spread = f", mean ± standard deviation over {study.seeds} splits" if study.seeds > 1 else ""
    paper = read_published("summarization")
    assert paper is not None
    others = "" if {*study.data.ood} == {*paper.columns} else f", a mean over {', '.join(paper.columns)}"
    sentences = [
        f"Mean AUROC over the OOD sets in percent{spread}, with the best beta below it, selected by this same mean; in "
        f"parentheses the paper's figure (figure 4{others}), which is given for the largest model alone.",
        *describe_left_out(study),
    ]
    # The table has no figures of the other betas, so their warnings are left out.
    shown = [result for result in results if result.failures or result in best.values()]
    notes = describe_fits(shown)
    rows, columns = [f"M = {heads}" for heads in _HEADS], [f"T = {queries}" for queries in _QUERIES]
    return Grid([Block(None, rows)], columns, cells, " ".join(sentences), notes)


def _check(best: _BestResults) -> list[Claim]:
    most = _HEADS[-1]
    paths = {
        "The mean AUROC over M at T = 1": [(heads, 1) for heads in _HEADS],
        f"The mean AUROC over T at M = {most}": [(most, queries) for queries in _QUERIES],
    }
    # A claim is undecided if one of its sizes failed.
    return [
        claim_rising(what, [best[size].mean_auroc for size in path] if best.keys() >= {*path} else [])
        for what, path in paths.items()
    ]


_TASK = replace(SUMMARIZATION, settings=Settings(train=_ALL_OF_XSUM))
EXPERIMENTS = (ScalingExperiment("scaling", _TASK, seeds=1, modes=("input",), train_share=1.0),)
