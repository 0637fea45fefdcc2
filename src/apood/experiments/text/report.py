"""The report of the benchmark in Markdown: a summary over tasks, a table per task, and quality by the number of AUX."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from apood.evaluation.metrics import Estimate
from apood.experiments.text.bootstrap import Floats, estimate_difference
from apood.experiments.text.results import ALL, EQUAL, PLAIN, SPLICED, MethodResult
from apood.experiments.text.rows import AUX_COUNTS, CONTROL, DEFAULT, PRIOR_ART
from apood.report.tables import escape_markdown
from apood.support.errors import InputError
from apood.support.files import atomic_file

__all__ = ["make_page", "write_report"]

_CURVES = "aux-curve.png"
_INTRODUCTION = """
AUROC (higher is better) / FPR95 (lower is better) in percent. Every method runs at its defaults; methods with a seed
are averaged over the seeds. Rows are methods on views: the layers that a token is made of. *At equal lengths*, ID and
OOD texts are weighted so that both have the same lengths; `-` means that the lengths of a set overlap too little.
Intervals (± is half of one) are 95%, by a paired bootstrap over the texts. Means are over near and far sets; *spliced*
sets, ID texts with one foreign sentence, have a mean of their own. Texts are cut at `max_tokens`
(`on_long="beginning"`), so that all methods see the same tokens.
"""

AUTO = "auto"
Row = tuple[str, str]


class _Task:
    """All results of one task."""

    def __init__(self, results: Sequence[MethodResult]) -> None:
        self.name, self.untouched = results[0].task, results[0].untouched
        self.rows = {result.row: result for result in results}
        defaults = [result for result in results if result.row[0] == DEFAULT]
        self.view = str((defaults or results)[0].content["task"]["views"][0])
        self.default = self.find((DEFAULT, self.view))

    @property
    def first(self) -> MethodResult:
        """Any of the results, for what they share."""
        return next(iter(self.rows.values()))

    def find(self, row: Row) -> MethodResult | None:
        """Return the result of a row; the view `auto` is the first view of this task."""
        label, view = row
        return self.rows.get((label, self.view) if view == AUTO else row)

    def of(self, row: Row) -> Floats:
        """Return the resampled mean AUROC and FPR95 of a row."""
        return np.asarray(self[row].mean(ALL, PLAIN))

    def __getitem__(self, row: Row) -> MethodResult:
        found = self.find(row)
        assert found is not None, f"{row} was not measured on {self.name}"
        return found


def write_report(results: Sequence[MethodResult], path: Path) -> list[Path]:
    """Write the page and, if a method learnt from AUX texts, the figure beside it; return both files."""
    figure = path.with_name(_CURVES)
    drawn = _draw_curves(_group(results), figure)
    with atomic_file(path) as temporary:
        temporary.write_text(make_page(results, figure.name if drawn else None), encoding="utf-8")
    return [path, *([figure] if drawn else [])]


def make_page(results: Sequence[MethodResult], figure: str | None = None) -> str:
    """Return the whole page in Markdown."""
    tasks = _group(results)
    commands = dict.fromkeys(str(one.content["manifest"].get("command", "unknown")) for one in results)
    machines = dict.fromkeys(_describe_machine(one) for one in results)
    chosen = [task.name for task in tasks if not task.untouched]
    parts = ["# Detection of OOD texts from tokens\n", _INTRODUCTION.strip() + "\n"]
    parts.append("\n".join(["Made by:\n", *(f"- `{command}`" for command in commands), ""]))
    parts.append("\n".join(["On:\n", *(f"- {machine}" for machine in machines), ""]))
    if chosen:
        parts.append(f"Settings of apood were chosen on {', '.join(chosen)}. The other tasks are *untouched*.\n")
    whole = [task for task in tasks if task.default is not None]
    parts.append(_make_summary("all tasks", whole or tasks))
    if (untouched := [task for task in whole or tasks if task.untouched]) and len(untouched) < len(tasks):
        parts.append(_make_summary("the untouched ones among them", untouched))
    parts += _make_aux_tables(tasks, figure)
    parts += [table for task in tasks for table in _make_task_tables(task)]
    return "\n".join(parts)


def _group(results: Sequence[MethodResult]) -> list[_Task]:
    by_task: dict[str, list[MethodResult]] = {}
    for result in results:
        by_task.setdefault(result.task, []).append(result)
    for name, own in by_task.items():
        for what, said in (("texts", f"on other texts of {name}"), ("model", f"with another model for {name}")):
            for other in own:
                if other.content["manifest"].get(what) != own[0].content["manifest"].get(what):
                    raise InputError(f"{other.path} was measured {said} than {own[0].path}.")
    return [_Task(own) for own in by_task.values()]


def _describe_machine(result: MethodResult) -> str:
    manifest = result.content["manifest"]
    versions = manifest.get("versions", {})
    shown = {"apood": versions.get("apood"), "source": str(versions.get("source"))[:12], "torch": versions.get("torch")}
    return ", ".join([str(manifest.get("device")), *(f"{name} {value}" for name, value in shown.items())])


# the summary


def _make_summary(title: str, tasks: Sequence[_Task]) -> str:
    alone = [row for row, result in tasks[0].rows.items() if not result.aux]
    rows = [row for row in alone if all(row in task.rows for task in tasks)]
    if not rows:
        return f"## Summary, {title}\n\nNo method was measured on all of them.\n"
    measured = list(rows)
    if len({task.view for task in tasks}) > 1:  # each task has its own best guess of a view: show it as one
        labels = dict.fromkeys(label for label, view in alone if view != "any")
        rows += [(label, AUTO) for label in labels if all(task.find((label, AUTO)) for task in tasks)]
    values = {row: np.array([task.of(row)[0, 0] for task in tasks]) for row in rows}
    ranks = {
        row: fmean(1 + sum(values[other][i] > values[row][i] for other in measured) for i in range(len(tasks)))
        for row in rows
    }
    rivals = [values[row] for row in measured if row[0] not in (DEFAULT, CONTROL)]
    best = np.max(rivals, axis=0) if rivals else None
    head = ["method", "view", "mean rank", "AUROC / FPR95", "at equal lengths", "spliced", "spliced at equal lengths"]
    head += ["worst gap to the best single method", "default - it, AUROC", "FPR95", "AUROC at equal lengths"]
    lines = [head]
    for row in sorted(rows, key=lambda one: (ranks[one], -values[one].mean())):
        gap = "" if best is None else f"{(values[row] - best).min():+.1f}"
        lines.append(
            [
                *_name(row),
                f"{ranks[row]:.1f}",
                _format_mean(tasks, row, ALL, PLAIN),
                _format_mean(tasks, row, ALL, EQUAL),
                _format_mean(tasks, row, SPLICED, PLAIN),
                _format_mean(tasks, row, SPLICED, EQUAL),
                gap,
                _format_lead(tasks, row, PLAIN, 0),
                _format_lead(tasks, row, PLAIN, 1),
                _format_lead(tasks, row, EQUAL, 0),
            ]
        )
    return f"## Summary, {title} ({len(tasks)})\n\n{_to_markdown(lines, words=2)}"


def _format_mean(tasks: Sequence[_Task], row: Row, of: str, how: str) -> str:
    """Return the mean over those tasks that have the figure."""
    found = [mean[:, 0] for task in tasks if (mean := task[row].mean(of, how)) is not None]
    return " / ".join(f"{value:.1f}" for value in np.mean(found, axis=0)) if found else "-"


def _format_lead(tasks: Sequence[_Task], row: Row, how: str, metric: int) -> str:
    """Return how much larger the figure of the default is, with its interval."""
    pairs = []
    if all(task.find(row) is task.default for task in tasks):
        return ""
    for task in tasks:
        if task.default is None:
            return ""
        mine, theirs = task.default.mean(ALL, how), task[row].mean(ALL, how)
        if mine is not None and theirs is not None:
            pairs.append((mine[metric], theirs[metric]))
    if not pairs:
        return "-"
    return _format_estimate(estimate_difference(*map(list, zip(*pairs, strict=True))))


def _format_estimate(found: Estimate) -> str:
    interval = "" if math.isnan(found.low) else f" [{found.low:+.1f}, {found.high:+.1f}]"
    return f"{found.value:+.1f}{interval}"


# the tables of a task


def _make_task_tables(task: _Task) -> list[str]:
    touched = "untouched" if task.untouched else "settings were chosen on it"
    sets = {name: own["kind"] for name, own in task.first.content["figures"].items()}
    parts = [f"## {task.name} ({touched})\n"]
    for title, wanted in (
        ("", {"near", "far"}),
        ("One foreign sentence in an ID text, by where it is from:\n", {SPLICED}),
    ):
        own = [name for name, kind in sets.items() if kind in wanted]
        if own:
            parts += [*([title] if title else []), _make_task_table(task, own, sets, SPLICED if title else ALL)]
    return parts


def _make_task_table(task: _Task, names: Sequence[str], kinds: dict[str, str], of: str) -> str:
    head = ["method", "view"]
    for name in names:
        shown = escape_markdown(name.split(".", 1)[1])
        head += [shown if of == SPLICED else f"{shown} ({kinds[name]})", "at equal lengths"]
    head += ["mean", "mean at equal lengths"]
    if of == ALL:
        head += ["accepted", "fit, s", "score, s per 1000"]
    lines = [head]
    for learning in (False, True):
        rows = [
            row
            for row, result in task.rows.items()
            if bool(result.aux) == learning and result.mean(of, PLAIN) is not None
        ]
        best = max((f"{_value(task, row, of):5.1f}" for row in rows), default="")
        for row in sorted(rows, key=lambda one: -_value(task, one, of)):
            content = task.rows[row].content
            cells = [
                _format_cell(content["figures"].get(name, {}).get(how)) for name in names for how in (PLAIN, EQUAL)
            ]
            mean = _format_cell(content["means"][of][PLAIN], digits=1)
            cells.append(f"**{mean}**" if f"{_value(task, row, of):5.1f}" == best else mean)
            cells.append(_format_cell(content["means"][of][EQUAL], digits=1))
            if of == ALL:
                costs, accepted = content["costs"], content.get("accepted")
                cells.append("-" if accepted is None else f"{accepted:.0f}")
                cells += [f"{costs.get(key, float('nan')):.2f}" for key in ("fit_seconds", "score_seconds_per_1000")]
            lines.append([*_name(row), *cells])
    return _to_markdown(lines, words=2)


def _name(row: Row) -> Row:
    return escape_markdown(PRIOR_ART.get(row, row[0])), row[1]


def _value(task: _Task, row: Row, of: str) -> float:
    return float(np.asarray(task.rows[row].mean(of, PLAIN))[0, 0])


def _format_cell(figures: dict[str, list[float]] | None, digits: int = 0) -> str:
    """Return AUROC with half of its interval, and FPR95."""
    if figures is None:
        return "-"
    value, low, high = figures["auroc"]
    return f"{value:.1f} ±{(high - low) / 2:.1f} / {figures['fpr95'][0]:.{digits}f}"


# AUX texts


def _find_curves(task: _Task) -> dict[Row, dict[int, Floats]]:
    """Return the figures of each method by the number of AUX texts, 0 among them."""
    curves: dict[Row, dict[int, Floats]] = {}
    for (label, view), result in task.rows.items():
        if result.aux:
            name = label.rpartition(", ")[0]
            own = curves.setdefault((name, view), {})
            own[result.aux] = task.of((label, view))
            if (name, view) in task.rows:
                own[0] = task.of((name, view))
    return curves


def _make_aux_tables(tasks: Sequence[_Task], figure: str | None) -> list[str]:
    drawn = {task.name: curves for task in tasks if (curves := _find_curves(task))}
    if not drawn:
        return []
    counts = sorted({0, *AUX_COUNTS, *(count for curves in drawn.values() for own in curves.values() for count in own)})
    parts = [
        "## Auxiliary outliers\n",
        "AUROC / FPR95, mean over the near and far sets, by the number N' of AUX texts.\n",
    ]
    if figure is not None:
        parts.append(f"![AUROC over the number of AUX texts, a panel per task]({figure})\n")
    tables: dict[str, list[dict[Row, dict[int, Floats]]]] = {name: [curves] for name, curves in drawn.items()}
    if len(drawn) > 1:
        # each task in its own view, because kinds of models differ in the one that suits them
        views = {task.name: task.view for task in tasks}
        own = [
            {(name, AUTO): curve for (name, view), curve in curves.items() if view == views[task]}
            for task, curves in drawn.items()
        ]
        tables = {f"all {len(drawn)} tasks with AUX texts": own} | tables
    for title, group in tables.items():
        lines = [["method", "view", *(f"N' = {count}" for count in counts)]]
        for row in [row for row in group[0] if all(row in curves for curves in group)]:
            cells = []
            for count in counts:
                found = [curves[row][count][:, 0] for curves in group if count in curves[row]]
                complete = len(found) == len(group)
                cells.append(" / ".join(f"{value:.1f}" for value in np.mean(found, axis=0)) if complete else "-")
            lines.append([escape_markdown(row[0]), row[1], *cells])
        parts.append(f"### AUX, {title}\n\n{_to_markdown(lines, words=2)}")
    return parts


def _draw_curves(tasks: Sequence[_Task], path: Path) -> bool:
    """Draw AUROC with its interval over N', a panel per task; return whether there was anything to draw."""
    drawn = {task.name: curves for task in tasks if (curves := _find_curves(task))}
    if not drawn:
        return False
    try:
        from apood.report.canvas import make_panels, new_figure, refuse_without_matplotlib, save_figure

        refuse_without_matplotlib()
    except InputError:
        return False
    columns = min(4, len(drawn))
    figure = new_figure((4 * columns, 3.2 * -(-len(drawn) // columns)))
    axes = make_panels(figure, len(drawn), columns)
    for axis, (name, curves) in zip(axes, drawn.items(), strict=True):
        counts = sorted({count for own in curves.values() for count in own})
        for (label, view), own in curves.items():
            places = [counts.index(count) for count in sorted(own)]
            shared = min(own[count].shape[1] for count in own)
            aurocs = np.array([own[count][0, :shared] for count in sorted(own)])
            axis.plot(places, aurocs[:, 0], marker="o", markersize=3, label=f"{label}, {view}")
            if shared > 1:
                axis.fill_between(places, *np.quantile(aurocs[:, 1:], [0.025, 0.975], axis=1), alpha=0.15)
        axis.set_xticks(range(len(counts)), [str(count) for count in counts])
        axis.set(xlabel="AUX texts", ylabel="AUROC, %", title=name)
        axis.legend(fontsize=6)
    save_figure(figure, path)
    return True


def _to_markdown(lines: Sequence[Sequence[str]], words: int) -> str:
    """Return a table; the first `words` columns are aligned left."""
    head, *rest = lines
    rows = [head, [*("---" for _ in head[:words]), *("---:" for _ in head[words:])], *rest]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"
