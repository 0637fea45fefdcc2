"""Figure 4: AP-OOD with ever more heads and queries, each with the best of the betas."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from apood.evaluation.rows import MEAN
from apood.experiments.paper.bench import Experiment, results_as_json
from apood.experiments.paper.claims import rising
from apood.experiments.paper.entries import Entry
from apood.experiments.paper.findings import Claim, Findings, Table
from apood.experiments.paper.published import BEST_SCALING
from apood.experiments.paper.settings import Settings, beta_of
from apood.experiments.paper.study import Scene, Study
from apood.experiments.paper.tables import shown
from apood.experiments.paper.tasks import SUMMARIZATION
from apood.experiments.paper.trials import Result, carry_out, mean_auroc
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
            Entry(f"M = {m}, T = {t}, β = {beta:.3g}", "ap-ood", {"heads": m, "queries": t, "beta": beta})
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
            [Table("Mean AUROC and best β", _grid(best, study))],
            figures,
            _claims(best),
        )


def _heatmap(best: Sizes, values: dict[tuple[int, int], float], label: str) -> object:
    cells = [HeatCell({"M": heads, "T": queries}, values[heads, queries]) for heads, queries in best]
    return heatmap_of(cells, title="AP-OOD by heads M and queries T", label=label)


def _grid(best: Sizes, study: Study) -> Grid:
    cells: dict[tuple[str, str], Cell] = {}
    for (heads, queries), result in best.items():
        theirs = f" ({BEST_SCALING:.1f})" if (heads, queries) == (_HEADS[-1], _QUERIES[-1]) else ""
        figure = Figure(shown(result.figure(MEAN, "auroc")) + theirs)
        cells[f"M = {heads}", f"T = {queries}"] = (figure, Figure(f"β = {result.parameters['beta']:.3g}"))
    spread = f", mean ± standard deviation over {study.seeds} splits" if study.seeds > 1 else ""
    legend = (
        f"Mean AUROC over the OOD sets in percent{spread}, with the best of the betas below it, chosen by this same "
        "mean; in parentheses the paper's figure (figure 4), of which the text gives that of the largest model alone."
    )
    rows = [f"M = {heads}" for heads in _HEADS]
    return Grid([Block(None, rows)], [f"T = {queries}" for queries in _QUERIES], cells, legend)


def _claims(best: Sizes) -> list[Claim]:
    over_heads = [mean_auroc(best[heads, 1]) for heads in _HEADS if (heads, 1) in best]
    most = _HEADS[-1]
    over_queries = [mean_auroc(best[most, queries]) for queries in _QUERIES if (most, queries) in best]
    return [
        rising("The mean AUROC over M at T = 1", over_heads),
        rising(f"The mean AUROC over T at M = {most}", over_queries),
    ]


SCALING_BENCH = Scaling(
    "scaling",
    replace(SUMMARIZATION, settings=Settings(train=_ALL_OF_XSUM)),
    seeds=1,
    modes=("input",),
    train_share=1.0,
)
