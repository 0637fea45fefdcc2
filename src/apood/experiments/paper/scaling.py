"""Figure 4: AP-OOD with ever more heads and queries, each with the best of the betas."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from apood.evaluation.result import MEAN
from apood.experiments.paper.bench import Experiment, results_as_json
from apood.experiments.paper.claims import rising
from apood.experiments.paper.entries import Entry
from apood.experiments.paper.findings import Claim, Findings, Table
from apood.experiments.paper.published import BEST_SCALING, published
from apood.experiments.paper.settings import Settings, beta_of
from apood.experiments.paper.study import Scene, Study
from apood.experiments.paper.tables import lacking_sets, shown
from apood.experiments.paper.tasks import SUMMARIZATION
from apood.experiments.paper.trials import Result, carry_out, mean_auroc
from apood.report.comparison import fit_notes, row_name
from apood.report.grid import Block, Cell, Figure, Grid
from apood.report.heatmap import Cell as HeatCell
from apood.report.heatmap import heatmap_of

__all__ = ["SCALING_BENCH", "Scaling"]

_HEADS, _QUERIES = (1, 16, 128, 1024), (1, 4, 16)
_ALL_OF_XSUM = 204_045
Sizes = dict[tuple[int, int], Result]
"""The result with the best beta, by M and T."""


@dataclass(frozen=True)
class Scaling(Experiment):
    """Two heat maps over M and T: the mean AUROC with the best beta, and that beta."""

    def rows(self, scene: Scene) -> Sequence[Entry]:
        """Every M, T and beta."""
        betas = sorted({beta_of(beta, scene.dim) for beta in scene.settings.betas})
        sizes = [(heads, queries, beta) for heads in _HEADS for queries in _QUERIES for beta in betas]
        return [
            Entry(f"M = {m} and T = {t} with β = {beta:.3g}", "ap-ood", {"heads": m, "queries": t, "beta": beta})
            for m, t, beta in sizes
        ]

    def carry_out(self, study: Study) -> Findings:
        """The beta of a size is the one with the highest mean AUROC over the OOD sets, as the figure says."""
        (mode,) = study.modes
        results = carry_out(study, {mode: self.rows(study.scene(mode))})
        best: Sizes = {}
        for result in (result for result in results if not result.failures):
            size = result.parameters["heads"], result.parameters["queries"]
            if size not in best or mean_auroc(result) > mean_auroc(best[size]):
                best[size] = result
        figures = {
            "figure-auroc": lambda: _heatmap(best, {size: mean_auroc(r) for size, r in best.items()}, "mean AUROC, %"),
            "figure-beta": lambda: _heatmap(best, {size: r.parameters["beta"] for size, r in best.items()}, "best β"),
        }
        return Findings(
            results_as_json(results, None, study),
            [Table("Mean AUROC and best β", _grid(results, best, study))],
            figures,
            _claims(best),
        )


def _heatmap(best: Sizes, values: dict[tuple[int, int], float], label: str) -> object:
    cells = [HeatCell({"M": heads, "T": queries}, values[heads, queries]) for heads, queries in best]
    return heatmap_of(cells, title="AP-OOD by heads M and queries T", label=label)


def _grid(results: Sequence[Result], best: Sizes, study: Study) -> Grid:
    cells: dict[tuple[str, str], Cell] = {}
    for (heads, queries), result in best.items():
        theirs = f" ({BEST_SCALING:.1f})" if (heads, queries) == (_HEADS[-1], _QUERIES[-1]) else ""
        figure = Figure(row_name(result.outcome, shown(result.figure(MEAN, "auroc")) + theirs))
        cells[f"M = {heads}", f"T = {queries}"] = (figure, Figure(f"β = {result.parameters['beta']:.3g}"))
    spread = f", mean ± standard deviation over {study.seeds} splits" if study.seeds > 1 else ""
    paper = published("summarization")
    assert paper is not None
    others = "" if {*study.ood} == {*paper.columns} else f", a mean over {', '.join(paper.columns)}"
    sentences = [
        f"Mean AUROC over the OOD sets in percent{spread}, with the best of the betas below it, chosen by this same "
        f"mean; in parentheses the paper's figure (figure 4{others}), of which the text gives that of the largest "
        "model alone.",
        *lacking_sets(study),
    ]
    # a beta that was not the best may have warned, but none of its figures is here
    told = [result for result in results if result.failures or result in best.values()]
    notes = fit_notes(result.outcome for result in told)
    rows = [f"M = {heads}" for heads in _HEADS]
    return Grid([Block(None, rows)], [f"T = {queries}" for queries in _QUERIES], cells, " ".join(sentences), notes)


def _claims(best: Sizes) -> list[Claim]:
    most = _HEADS[-1]
    ways = {
        "The mean AUROC over M at T = 1": [(heads, 1) for heads in _HEADS],
        f"The mean AUROC over T at M = {most}": [(most, queries) for queries in _QUERIES],
    }
    # of a size that failed nothing is known, so nothing of all of them
    return [
        rising(what, [mean_auroc(best[one]) for one in way] if best.keys() >= {*way} else [])
        for what, way in ways.items()
    ]


SCALING_BENCH = Scaling(
    "scaling",
    replace(SUMMARIZATION, settings=Settings(train=_ALL_OF_XSUM)),
    seeds=1,
    modes=("input",),
    train_share=1.0,
)
