"""Appendix C.3: heads are learnt independently of each other, queries of one head are not, and many queries over-fit.

Two heads, or two queries of one head, are trained with SGD. A single head is trained beside them, from the start of the
first and on the same batches. Then AP-OOD is fitted on at most 10,000 sequences with more and more queries and fewer
heads, and the distances of its training sequences are compared with those of held-out sequences.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from apood.detectors.ap_ood.training import log_norms, squared_distances
from apood.detectors.contract.held_out import HeldOutFit
from apood.evaluation.result import Spread
from apood.evaluation.study import fit_entry
from apood.experiments.paper.claims import Claim
from apood.experiments.paper.experiment import Experiment, results_to_json
from apood.experiments.paper.findings import Findings, Table
from apood.experiments.paper.study_data import Row, RowResult, StudyData, TableContext
from apood.experiments.paper.tables import describe_rows
from apood.experiments.paper.tasks import SUMMARIZATION, Mode, Settings, resolve_beta
from apood.pooling import attention_pool
from apood.report.comparison import make_row_name
from apood.report.grid import Block, Cell, Figure, Grid
from apood.report.pictures import Curve, draw_curves
from apood.support.progress import progress_bar
from apood.tokens.loader import prefetch, shuffle_batches
from apood.tokens.source import TokenSource

__all__ = ["EXPERIMENTS"]

_SEQUENCES = 10_000
_SGD_STEPS, _BATCH = 500, 64
_RATE = 0.01  # of SGD on tokens of length 1
_TOLERANCE = 0.01  # of the relative difference that rounding leaves after these steps


@dataclass(frozen=True)
class HeadsAndQueriesExperiment(Experiment):
    """The differences from training alone, and the over-fitting by the number of queries."""

    def rows(self, context: TableContext) -> Sequence[Row]:
        """Return a row for each power of four that divides D, as T, with M T = D."""
        counts = [4**power for power in range(6) if context.dim % 4**power == 0]
        sizes = ({"queries": count, "heads": context.dim // count} for count in counts)
        return [Row("ap-ood", size, f"T = {size['queries']}", selected=True) for size in sizes]

    def run(self, study: StudyData) -> Findings:
        """Return the differences on the first split and the over-fitting on all."""
        (mode,) = study.modes
        differences = _train_alone_and_together(study, mode)
        results = study.run({mode: self.rows(study.context(mode))})
        whole = {result.entry.label: result for result in results if not result.failures}
        fits = {
            label: [_measure_fit(study, result, number) for number in range(study.seeds)]
            for label, result in whole.items()
        }
        ratios = {label: Spread.from_values([fit.ratio for fit in own]) for label, own in fits.items()}
        points = {result.parameters["queries"]: ratios[label] for label, result in whole.items()}
        facts = {
            "relative_difference_from_training_alone": differences,
            "distances": {
                label: [{"training": fit.training_distance, "held_out": fit.distance} for fit in own]
                for label, own in fits.items()
            },
            **results_to_json(results, None, study),
        }
        heads, queries = differences["heads"], differences["queries"]
        claims = [
            Claim("Heads with the same start remain identical under SGD", heads < _TOLERANCE, f"{heads:.1e}"),
            Claim("Queries with the same start do not", queries > _TOLERANCE, f"{queries:.1e}"),
            _check_over_fitting([result.entry.label for result in results], {k: v.mean for k, v in ratios.items()}),
        ]
        curves = {"Over-fitting": [Curve("AP-OOD, M T = D", points)]}
        figures = {
            "figure": lambda: draw_curves(curves, "queries T", "held-out / training distance", logarithmic=True),
        }
        over_fitting = _distance_grid(results, fits, describe_rows(study, results))
        tables = [Table("Apart from the one alone", _difference_grid(differences)), Table("Over-fitting", over_fitting)]
        return Findings(facts, tables, figures, claims)


def _train_alone_and_together(study: StudyData, mode: Mode) -> dict[str, float]:
    """Return how far the first of two heads, or queries, ends from where it ends alone, relative to its path."""
    train = study.split(mode, 0).train
    steps = study.data.settings.steps or _SGD_STEPS
    start = torch.randn(2, train.dim, generator=torch.Generator().manual_seed(0))
    starts = {"alone": start[:1, None], "heads": start[:, None], "queries": start[None]}
    with progress_bar(len(starts) * steps, "SGD") as progress:
        ends = {what: _descend(train, own, steps, progress.update)[0, 0] for what, own in starts.items()}
    alone = ends.pop("alone")
    return {what: float((end - alone).norm() / (alone - start[0]).norm()) for what, end in ends.items()}


def _descend(train: TokenSource, start: Tensor, steps: int, after_each: Callable[[], object]) -> Tensor:
    """Return queries `[M, T, D]` after `steps` steps of gradient descent on the paper's loss.

    They are computed on the CPU in float32: lower precision would separate equal heads by rounding alone.
    """
    queries = start.clone().requires_grad_()
    beta = resolve_beta("1/sqrt(D)", train.dim)
    for batch in prefetch(map(train.select, islice(shuffle_batches(train, seed=0, batch_size=_BATCH), steps))):
        pooled = attention_pool(batch, queries, beta, exact=True)
        loss = (squared_distances(pooled).mean(0) - log_norms(queries)).sum()
        (gradient,) = torch.autograd.grad(loss, queries)
        # The loss is quadratic in the tokens, so longer tokens need shorter steps.
        rate = _RATE / float(batch.values.float().square().sum(1).mean())
        with torch.no_grad():
            queries -= rate * gradient
        after_each()
    return queries.detach()


def _measure_fit(study: StudyData, result: RowResult, number: int) -> HeldOutFit:
    """Return the distances of training and held-out sequences; the fit is read from the cache."""
    data = study.split(result.entry.mode, number).read_for(result.entry)
    fit = fit_entry(result.entry, data, study.cache)
    return fit.fit_or_load().held_out_fit(data.test)


def _check_over_fitting(labels: Sequence[str], ratios: dict[str, float]) -> Claim:
    sentence = "Many queries and few heads over-fit more than one query per head"
    fewest, most = labels[0], labels[-1]
    if most == fewest or not {fewest, most} <= ratios.keys():
        return Claim(sentence, None)
    because = f"held-out / training distance: {fewest} {ratios[fewest]:.2f}, {most} {ratios[most]:.2f}"
    return Claim(sentence, ratios[most] > ratios[fewest], because)


def _difference_grid(differences: dict[str, float]) -> Grid:
    cells: dict[tuple[str, str], Cell] = {
        (f"two {what}", "difference"): (Figure(f"{value:.1e}"),) for what, value in differences.items()
    }
    legend = (
        "Two heads, or two queries, trained with SGD: the distance of the first from where it ends alone, relative to "
        "the length of its path."
    )
    return Grid([Block(None, [f"two {what}" for what in differences])], ["difference"], cells, legend)


def _distance_grid(results: Sequence[RowResult], fits: dict[str, list[HeldOutFit]], notes: list[str]) -> Grid:
    columns = {"training_distance": "training", "distance": "held out", "ratio": "ratio"}
    names = {result.entry.label: make_row_name(result) for result in results}
    cells: dict[tuple[str, str], Cell] = {}
    for label, own in fits.items():
        for name, column in columns.items():
            mean, deviation = Spread.from_values([getattr(fit, name) for fit in own])
            reach = "" if deviation is None else f" ±{deviation:.2f}"
            cells[names[label], column] = (Figure(f"{mean:.2f}{reach}"),)
    legend = "Mean squared distance per head of ID training sequences and of held-out ones; a ratio of 1 is ideal."
    return Grid([Block(None, list(names.values()))], list(columns.values()), cells, legend, notes)


_TASK = replace(SUMMARIZATION, settings=Settings(train=_SEQUENCES))
EXPERIMENTS = (HeadsAndQueriesExperiment("heads-vs-queries", _TASK, modes=("input",)),)
