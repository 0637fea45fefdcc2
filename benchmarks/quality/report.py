"""The findings as `QUALITY.md`, and the figure of quality over the number of AUX sequences."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from apood.evaluation.metrics import auroc, fpr95
from benchmarks.quality.contenders import CONTENDERS, DEFAULT, SUPERVISED
from benchmarks.quality.measure import AUX_COUNTS, Measured
from benchmarks.quality.paired import Resampled, difference, resampled
from benchmarks.quality.tasks import TASKS, TUNED

__all__ = ["plot_aux_curve", "quality_page"]

_Row = Sequence[str]
_UNSUPERVISED = [contestant.label for contestant in CONTENDERS if not contestant.aux]
_SUPERVISED = [contestant.label for contestant in CONTENDERS if contestant.aux]
_CONTROL = "length only"  # not a method that anybody would use


class _Figures:
    """All methods on one task, each seed resampled alike."""

    def __init__(self, measured: Measured) -> None:
        self.task, self.machine = measured.task, measured.machine
        self.sets = list(dict.fromkeys(name for _, _, name in measured.scores if name != "test"))
        self.seeds: dict[str, list[int]] = {}
        for label, seed in measured.costs:
            self.seeds.setdefault(label, []).append(seed)
        self._measured = measured
        self._known: dict[str, Resampled] = {}

    def of_set(self, label: str, name: str) -> list[tuple[float, float]]:
        """AUROC and FPR95 of a method on one OOD set, every seed."""
        scores = self._measured.scores
        pairs = [(scores[label, seed, "test"], scores[label, seed, name]) for seed in self.seeds[label]]
        return [(100 * auroc(*pair).value, 100 * fpr95(*pair).value) for pair in pairs]

    def mean(self, label: str) -> Resampled:
        """A method, the mean over OOD sets and seeds."""
        if label not in self._known:
            scores = self._measured.scores
            of_seeds = [
                resampled(scores[label, s, "test"], [scores[label, s, name] for name in self.sets])
                for s in self.seeds[label]
            ]
            self._known[label] = Resampled(
                np.mean([one.auroc for one in of_seeds], axis=0), np.mean([one.fpr95 for one in of_seeds], axis=0)
            )
        return self._known[label]

    def cost(self, label: str, kind: str) -> float:
        """Seconds of a fit, or to score 1000 sequences."""
        return fmean(self._measured.costs[label, seed][kind] for seed in self.seeds[label])


def quality_page(measured: Sequence[Measured], command: str) -> str:
    """All tables in Markdown."""
    tasks = [_Figures(one) for one in measured]
    parts = [
        "# Quality on real text\n",
        f"Made by `{command}`. AUROC (higher is better) / FPR95 (lower is better) in percent. Every method runs at its "
        "defaults; where it has a seed, a cell is the mean over three. Intervals are 95%, by a paired bootstrap over "
        "the inputs (1000 resamples).\n",
        f"Defaults were chosen on {', '.join(TUNED)}. The other tasks are *untouched*: they were not used to choose "
        "anything.\n",
    ]
    if missing := [task.name for task in TASKS if task.name not in {one.task.name for one in measured}]:
        parts.append(f"Not measured with this version yet: {', '.join(missing)}.\n")
    groups: list[tuple[str, Callable[[_Figures], bool]]] = [
        ("all tasks that the default was measured on", lambda _: True),
        ("the untouched ones among them", lambda task: task.task.name not in TUNED),
    ]
    for title, chosen in groups:
        parts.append(_summary(title, [task for task in tasks if chosen(task) and DEFAULT in task.seeds]))
    parts += [_task_table(task) for task in tasks]
    return "\n".join(parts)


def _summary(title: str, tasks: Sequence[_Figures]) -> str:
    if not tasks:
        return f"## Summary, {title}\n\nThe default was not measured on any of them yet.\n"
    labels = [label for label in _UNSUPERVISED if all(label in task.seeds for task in tasks)]
    rivals = [label for label in labels if label not in (DEFAULT, _CONTROL)]
    ranks = {label: fmean(_rank(task, label, labels) for task in tasks) for label in labels}
    lines: list[_Row] = [
        ["method", "mean rank", "AUROC", "FPR95", "worst gap to the best single method", "default - it, AUROC", "FPR95"]
    ]
    for label in sorted(labels, key=lambda one: ranks[one]):
        aurocs = [task.mean(label).auroc for task in tasks]
        fprs = [task.mean(label).fpr95 for task in tasks]
        gap = min(task.mean(label).auroc[0] - max(task.mean(r).auroc[0] for r in rivals) for task in tasks)
        against = ["", ""]
        if label != DEFAULT:
            better = difference([task.mean(DEFAULT).auroc for task in tasks], aurocs)
            fewer = difference([task.mean(DEFAULT).fpr95 for task in tasks], fprs)
            against = [f"{e.value:+.1f} [{e.low:+.1f}, {e.high:+.1f}]" for e in (better, fewer)]
        means = [f"{fmean(float(x[0]) for x in figures):.1f}" for figures in (aurocs, fprs)]
        lines.append([label, f"{ranks[label]:.1f}", *means, f"{gap:+.1f}", *against])
    return f"## Summary, {title} ({len(tasks)})\n\n{_markdown(lines)}"


def _rank(task: _Figures, label: str, labels: Sequence[str]) -> int:
    return 1 + sum(float(task.mean(other).auroc[0]) > float(task.mean(label).auroc[0]) for other in labels)


def _task_table(task: _Figures) -> str:
    lines: list[_Row] = [["method", *task.sets, "mean", "fit, s", "score, s per 1000"]]
    named = {*_UNSUPERVISED, *_SUPERVISED}
    others = [label for label in task.seeds if label not in named and "N'=" not in label]  # of earlier versions
    for labels in ([*_UNSUPERVISED, *others], _SUPERVISED):
        present = [label for label in labels if label in task.seeds]
        best = max((task.mean(label).auroc[0] for label in present), default=0.0)
        for label in present:
            cells = [_spread(task.of_set(label, name)) for name in task.sets]
            mean = task.mean(label)
            shown = f"{mean.auroc[0]:.1f} / {mean.fpr95[0]:.1f}"
            bold = f"**{shown}**" if f"{mean.auroc[0]:.1f}" == f"{best:.1f}" else shown
            costs = [f"{task.cost(label, kind):.2f}" for kind in ("fit", "score")]
            lines.append([label, *cells, bold, *costs])
    touched = "defaults were chosen on it" if task.task.name in TUNED else "untouched"
    return f"## {task.task.name} ({touched})\n\n{task.machine}.\n\n{_markdown(lines)}"


def _spread(seeds: Sequence[tuple[float, float]]) -> str:
    """Mean over seeds, with the standard deviation of the AUROC where there are several."""
    aurocs, fprs = zip(*seeds, strict=True)
    reach = f" ±{stdev(aurocs):.1f}" if len(seeds) > 1 else ""
    return f"{fmean(aurocs):.1f}{reach} / {fmean(fprs):.0f}"


def _markdown(lines: Sequence[_Row]) -> str:
    head, *rest = lines
    rows = [head, ["---", *("---:" for _ in head[1:])], *rest]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def aux_table(measured: Sequence[Measured]) -> str:
    """Quality over the number of AUX sequences, with what another step of it gains."""
    parts = [
        "## Auxiliary outliers\n",
        "Mean AUROC over the OOD sets, by the number N' of AUX sequences (bands: 95% intervals).\n\n"
        "![AUROC over the number of AUX sequences, a panel a task](aux-curve.png)\n",
    ]
    for one in measured:
        task = _Figures(one)
        lines: list[_Row] = [["method", *(f"N' = {count}" for count in AUX_COUNTS)]]
        for contestant in SUPERVISED:
            names = [f"{contestant.label}, N'={count}" for count in AUX_COUNTS]
            if any(name in task.seeds for name in names):
                cells = [f"{task.mean(name).auroc[0]:.1f}" if name in task.seeds else "–" for name in names]
                lines.append([contestant.label, *cells])
        if len(lines) > 1:
            parts.append(f"### {task.task.name}\n\n{_markdown(lines)}")
    return "\n".join(parts) if len(parts) > 2 else ""


def plot_aux_curve(measured: Sequence[Measured], path: Path) -> None:
    """One panel a task: AUROC with its interval over N'."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawn = [task for task in map(_Figures, measured) if any("N'=" in label for label in task.seeds)]
    if not drawn:
        return
    figure, axes = plt.subplots(1, len(drawn), figsize=(5 * len(drawn), 4), squeeze=False)
    for axis, task in zip(axes[0], drawn, strict=True):
        for contestant in SUPERVISED:
            names = {count: f"{contestant.label}, N'={count}" for count in AUX_COUNTS}
            known = [count for count, name in names.items() if name in task.seeds]
            figures = [task.mean(names[count]).auroc for count in known]
            places = [AUX_COUNTS.index(count) for count in known]
            low, high = np.quantile([one[1:] for one in figures], [0.025, 0.975], axis=1)
            axis.plot(places, [one[0] for one in figures], marker="o", label=contestant.label)
            axis.fill_between(places, low, high, alpha=0.15)
        axis.set_xticks(range(len(AUX_COUNTS)), [str(count) for count in AUX_COUNTS])
        axis.set_xlabel("AUX sequences")
        axis.set_ylabel("AUROC, %")
        axis.set_title(task.task.name)
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
