"""`QUALITY.md`, and the figure of quality by the number of AUX sequences."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from apood.evaluation.metrics import auroc, fpr95
from apood.report.canvas import new_figure, save_figure
from benchmarks.quality.measure import (
    AUX_COUNTS,
    CONTROL,
    DEFAULT,
    SUPERVISED,
    UNSUPERVISED,
    Measured,
    name_with_count,
)
from benchmarks.quality.paired import Floats, estimate_difference, resample
from benchmarks.quality.tasks import TASKS, TUNED

__all__ = ["make_page", "plot_aux_curve"]

_ALONE, _WITH_AUX = ([entry.label for entry in entries] for entries in (UNSUPERVISED, SUPERVISED))


class _TaskFigures:
    """The figures of all methods on one task."""

    def __init__(self, measured: Measured) -> None:
        self.name, self.machine, self.scores, self.costs = measured.task.name, *measured[1:]
        self.sets = list(dict.fromkeys(name for _, _, name in self.scores if name != "test"))
        self.seeds: dict[str, list[int]] = {}
        for label, seed in self.costs:
            self.seeds.setdefault(label, []).append(seed)
        self.means = cache(self._resample_means)

    def _resample_means(self, label: str) -> Floats:
        """Return the resampled AUROC and FPR95 of a method, averaged over OOD sets and seeds."""
        per_seed = [
            resample(self.scores[label, seed, "test"], [self.scores[label, seed, name] for name in self.sets])
            for seed in self.seeds[label]
        ]
        return np.asarray(np.mean(per_seed, axis=0))

    def format_set(self, label: str, name: str) -> str:
        """Return AUROC / FPR95 on one OOD set, the mean over the seeds."""
        pairs = [(self.scores[label, seed, "test"], self.scores[label, seed, name]) for seed in self.seeds[label]]
        aurocs = [100 * auroc(*pair).value for pair in pairs]
        reach = f" ±{stdev(aurocs):.1f}" if len(aurocs) > 1 else ""
        return f"{fmean(aurocs):.1f}{reach} / {fmean(100 * fpr95(*pair).value for pair in pairs):.0f}"


def make_page(measured: Sequence[Measured], command: str) -> str:
    """Return the whole page in Markdown."""
    tasks = [_TaskFigures(one) for one in measured]
    missing = [task.name for task in TASKS if task.name not in {task.name for task in tasks}]
    parts = [
        "# Quality on real text\n",
        f"Made by `{command}`. AUROC (higher is better) / FPR95 (lower is better) in percent. Every method runs at its "
        "defaults; methods with a seed are averaged over three. Intervals are 95%, by a paired bootstrap over the "
        "inputs (1000 resamples).\n",
        f"Defaults were chosen on {', '.join(TUNED)}. The other tasks are *untouched*: they were not used to choose "
        "anything.\n",
        *([f"Not measured with this version yet: {', '.join(missing)}.\n"] if missing else []),
    ]
    whole = [task for task in tasks if DEFAULT in task.seeds]
    parts.append(_make_summary("all tasks that the default was measured on", whole))
    parts.append(_make_summary("the untouched ones among them", [task for task in whole if task.name not in TUNED]))
    return "\n".join([*parts, *map(_make_task_table, tasks), *_make_aux_tables(tasks)])


def _make_summary(title: str, tasks: Sequence[_TaskFigures]) -> str:
    if not tasks:
        return f"## Summary, {title}\n\nThe default was not measured on any of them yet.\n"
    labels = [label for label in _ALONE if all(label in task.seeds for task in tasks)]
    rivals = [label for label in labels if label not in (DEFAULT, CONTROL)]
    values = {label: np.array([task.means(label)[0, 0] for task in tasks]) for label in labels}
    ranks = {
        label: fmean(1 + sum(values[other][i] > values[label][i] for other in labels) for i in range(len(tasks)))
        for label in labels
    }
    best = np.max([values[label] for label in rivals], axis=0)
    lines = [
        ["method", "mean rank", "AUROC", "FPR95", "worst gap to the best single method", "default - it, AUROC", "FPR95"]
    ]
    for label in sorted(labels, key=lambda one: ranks[one]):
        metrics = [[task.means(label)[metric] for task in tasks] for metric in (0, 1)]
        against = ["", ""]
        if label != DEFAULT:
            default = [[task.means(DEFAULT)[metric] for task in tasks] for metric in (0, 1)]
            estimates = map(estimate_difference, default, metrics)
            against = [f"{e.value:+.1f} [{e.low:+.1f}, {e.high:+.1f}]" for e in estimates]
        means = [f"{fmean(float(one[0]) for one in metric):.1f}" for metric in metrics]
        lines.append([label, f"{ranks[label]:.1f}", *means, f"{(values[label] - best).min():+.1f}", *against])
    return f"## Summary, {title} ({len(tasks)})\n\n{_to_markdown(lines)}"


def _make_task_table(task: _TaskFigures) -> str:
    lines = [["method", *task.sets, "mean", "fit, s", "score, s per 1000"]]
    earlier = [label for label in task.seeds if label not in {*_ALONE, *_WITH_AUX} and "N'=" not in label]
    for labels in ([*_ALONE, *earlier], _WITH_AUX):
        present = [label for label in labels if label in task.seeds]
        best = max((f"{task.means(label)[0, 0]:5.1f}" for label in present), default="")
        for label in present:
            mean = " / ".join(f"{value:.1f}" for value in task.means(label)[:, 0])
            bold = f"**{mean}**" if f"{task.means(label)[0, 0]:5.1f}" == best else mean
            costs = [
                f"{fmean(task.costs[label, seed][kind] for seed in task.seeds[label]):.2f}" for kind in ("fit", "score")
            ]
            lines.append([label, *(task.format_set(label, name) for name in task.sets), bold, *costs])
    touched = "defaults were chosen on it" if task.name in TUNED else "untouched"
    return f"## {task.name} ({touched})\n\n{task.machine}.\n\n{_to_markdown(lines)}"


def _make_aux_tables(tasks: Sequence[_TaskFigures]) -> list[str]:
    parts = [
        "## Auxiliary outliers\n",
        "Mean AUROC over the OOD sets, by the number N' of AUX sequences (bands: 95% intervals).\n\n"
        "![AUROC over the number of AUX sequences, a panel per task](aux-curve.png)\n",
    ]
    for task in tasks:
        lines = [["method", *(f"N' = {count}" for count in AUX_COUNTS)]]
        for entry in SUPERVISED:
            names = [name_with_count(entry, count) for count in AUX_COUNTS]
            if any(name in task.seeds for name in names):
                cells = [f"{task.means(name)[0, 0]:.1f}" if name in task.seeds else "–" for name in names]
                lines.append([entry.label, *cells])
        if len(lines) > 1:
            parts.append(f"### {task.name}\n\n{_to_markdown(lines)}")
    return parts if len(parts) > 2 else [""]


def _to_markdown(lines: Sequence[Sequence[str]]) -> str:
    head, *rest = lines
    rows = [head, ["---", *("---:" for _ in head[1:])], *rest]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def plot_aux_curve(measured: Sequence[Measured], path: Path) -> None:
    """Draw AUROC with its interval over N', a panel per task; nothing if no curve was measured."""
    drawn = [task for task in map(_TaskFigures, measured) if any("N'=" in label for label in task.seeds)]
    if not drawn:
        return
    figure = new_figure((5 * len(drawn), 4))
    for axis, task in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
        for entry in SUPERVISED:
            names = [name_with_count(entry, count) for count in AUX_COUNTS]
            places = [place for place, name in enumerate(names) if name in task.seeds]
            aurocs = np.array([task.means(names[place])[0] for place in places])
            axis.plot(places, aurocs[:, 0], marker="o", label=entry.label)
            axis.fill_between(places, *np.quantile(aurocs[:, 1:], [0.025, 0.975], axis=1), alpha=0.15)
        axis.set_xticks(range(len(AUX_COUNTS)), [str(count) for count in AUX_COUNTS])
        axis.set(xlabel="AUX sequences", ylabel="AUROC, %", title=task.name)
        axis.legend(fontsize=8)
    save_figure(figure, path)
