"""Appendix C.3: heads are learnt independently of one another and queries are not, and many queries learn by heart.

Two heads, or two queries of a head, are trained with SGD beside a single one that starts where the first of them
starts and sees the same batches. Then AP-OOD is fitted on at most 10,000 sequences with ever more queries and fewer
heads, and the distances of its training sequences are compared with those of sequences it has not seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from apood.detectors.ap_ood.training import log_norms, squared_distances
from apood.evaluation.fit_cache import CachedFit
from apood.evaluation.result import Spread
from apood.experiments.paper.bench import Experiment, results_as_json
from apood.experiments.paper.entries import Entry
from apood.experiments.paper.findings import Claim, Findings, Table
from apood.experiments.paper.settings import Settings, beta_of
from apood.experiments.paper.study import Scene, Study
from apood.experiments.paper.tables import name_of, notes_of
from apood.experiments.paper.tasks import SUMMARIZATION, Mode
from apood.experiments.paper.trials import Result, carry_out
from apood.pooling import attention_pool
from apood.report.curves import Curve, curves_of
from apood.report.grid import Block, Cell, Figure, Grid
from apood.support.progress import progress_bar
from apood.tokens.loader import prefetch, shuffle_batches
from apood.tokens.source import TokenSource

__all__ = ["HEADS_AND_QUERIES_BENCH", "HeadsAndQueries"]

_SEQUENCES = 10_000
_SGD_STEPS, _BATCH = 500, 64
_RATE = 0.01  # of SGD on tokens of length 1
_SAME = 0.01  # what rounding alone may leave after that many steps, relative to the way that they go


class _Distances(NamedTuple):
    """The mean d² a head of sequences that were learnt from and of others."""

    training: float
    held_out: float

    @property
    def ratio(self) -> float:
        """1 where nothing was learnt by heart."""
        return self.held_out / max(self.training, 1e-12)


@dataclass(frozen=True)
class HeadsAndQueries(Experiment):
    """How far the first of two ends from where it would alone, and how much is learnt by heart."""

    def rows(self, scene: Scene) -> Sequence[Entry]:
        """Every power of four that divides D as T, with M T = D."""
        counts = [4**power for power in range(6) if scene.dim % 4**power == 0]
        sizes = ({"queries": count, "heads": scene.dim // count} for count in counts)
        return [Entry(f"T = {size['queries']}", "ap-ood", size, selected=True) for size in sizes]

    def carry_out(self, study: Study) -> Findings:
        """Independence on the first split, over-fitting on all."""
        (mode,) = study.modes
        apart = _differences(study, mode)
        rows = carry_out(study, {mode: self.rows(study.scene(mode))})
        whole = {row.entry.label: row for row in rows if not row.failures}
        learnt = {
            label: [_distances(study, row, number) for number in range(study.seeds)] for label, row in whole.items()
        }
        ratios = {label: Spread.from_values([one.ratio for one in own]) for label, own in learnt.items()}
        points = {row.parameters["queries"]: ratios[label] for label, row in whole.items()}
        results = {
            "relative_difference_from_training_alone": apart,
            "distances": {label: [one._asdict() for one in own] for label, own in learnt.items()},
            **results_as_json(rows, None, study),
        }
        claims = [
            Claim(
                "Heads with the same start remain identical under SGD", apart["heads"] < _SAME, f"{apart['heads']:.1e}"
            ),
            Claim("Queries with the same start do not", apart["queries"] > _SAME, f"{apart['queries']:.1e}"),
            _over_fits([row.entry.label for row in rows], {label: ratio.mean for label, ratio in ratios.items()}),
        ]
        figures = {
            "figure": lambda: curves_of(
                {"Over-fitting": [Curve("AP-OOD, M T = D", points)]},
                "queries T",
                "held-out / training distance",
                logarithmic=True,
            )
        }
        distances = _distance_grid(rows, learnt, notes_of(study, rows))
        tables = [Table("Apart from the one alone", _apart_grid(apart)), Table("Over-fitting", distances)]
        return Findings(results, tables, figures, claims)


def _differences(study: Study, mode: Mode) -> dict[str, float]:
    """How far the first of two heads, or queries, ends from where it ends alone, relative to the way it goes."""
    train = study.split(mode, 0).train
    steps = study.settings.steps or _SGD_STEPS
    start = torch.randn(2, train.dim, generator=torch.Generator().manual_seed(0))
    starts = {"alone": start[:1, None], "heads": start[:, None], "queries": start[None]}
    with progress_bar(len(starts) * steps, "SGD") as progress:
        ends = {what: _descended(train, own, steps, progress.update)[0, 0] for what, own in starts.items()}
    alone = ends.pop("alone")
    return {what: float((end - alone).norm() / (alone - start[0]).norm()) for what, end in ends.items()}


def _descended(train: TokenSource, start: Tensor, steps: int, after_each: Callable[[], object]) -> Tensor:
    """Queries `[M, T, D]` after so many steps of plain gradient descent on the paper's loss.

    On the CPU and in float32: products that are rounded would part equal heads by themselves.
    """
    queries = start.clone().requires_grad_()
    beta = beta_of("1/sqrt(D)", train.dim)
    for batch in prefetch(map(train.select, islice(shuffle_batches(train, seed=0, batch_size=_BATCH), steps))):
        pooled = attention_pool(batch, queries, beta, exact=True)
        loss = (squared_distances(pooled).mean(0) - log_norms(queries)).sum()
        (gradient,) = torch.autograd.grad(loss, queries)
        # the loss is quadratic in the tokens: longer ones need shorter steps
        rate = _RATE / float(batch.values.float().square().sum(1).mean())
        with torch.no_grad():
            queries -= rate * gradient
        after_each()
    return queries.detach()


def _over_fits(labels: Sequence[str], ratios: dict[str, float]) -> Claim:
    sentence = "Many queries and few heads over-fit more than one query a head"
    fewest, most = labels[0], labels[-1]
    if most == fewest or not {fewest, most} <= ratios.keys():
        return Claim(sentence, None)
    because = f"held-out / training distance: {fewest} {ratios[fewest]:.2f}, {most} {ratios[most]:.2f}"
    return Claim(sentence, ratios[most] > ratios[fewest], because)


def _distances(study: Study, row: Result, number: int) -> _Distances:
    """Of a fit that is done, and read from the cache with its scores."""
    data = study.split(row.mode, number)
    detector = row.entry.detector(study, row.mode, number)
    fit = CachedFit(detector, data.train, None, study.cache)
    scores, _ = fit.score(data.test)
    held_out = fit.fit_or_load().held_out_fit(data.test, scores)
    return _Distances(held_out.training_distance, held_out.distance)


def _apart_grid(apart: dict[str, float]) -> Grid:
    cells: dict[tuple[str, str], Cell] = {
        (f"two {what}", "difference"): (Figure(f"{v:.1e}"),) for what, v in apart.items()
    }
    legend = "Of two that are trained with SGD: how far the first ends from where it ends alone, relative to its way."
    return Grid([Block(None, [f"two {what}" for what in apart])], ["difference"], cells, legend)


def _distance_grid(rows: Sequence[Result], learnt: dict[str, list[_Distances]], notes: list[str]) -> Grid:
    columns = {"training": "training", "held_out": "held out", "ratio": "ratio"}
    names = {row.entry.label: name_of(row) for row in rows}
    cells: dict[tuple[str, str], Cell] = {}
    for label, own in learnt.items():
        for name, column in columns.items():
            mean, deviation = Spread.from_values([getattr(one, name) for one in own])
            reach = "" if deviation is None else f" ±{deviation:.2f}"
            cells[names[label], column] = (Figure(f"{mean:.2f}{reach}"),)
    legend = "Mean squared distance a head of ID sequences that were learnt from and of others; a ratio of 1 is ideal."
    return Grid([Block(None, list(names.values()))], list(columns.values()), cells, legend, notes)


HEADS_AND_QUERIES_BENCH = HeadsAndQueries(
    "heads-vs-queries", replace(SUMMARIZATION, settings=Settings(train=_SEQUENCES)), modes=("input",)
)
