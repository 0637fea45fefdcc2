"""The table of a comparison, with metrics, costs and notes, and its files."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from apood.evaluation.comparison import Comparison
from apood.evaluation.result import Result, Run
from apood.evaluation.study import ACCEPT
from apood.report.grid import Block, Cell, Figure, Grid, format_interval, mark_best
from apood.report.tables import format_html, format_latex, format_markdown
from apood.support.checks import format_count
from apood.support.files import atomic_file, write_json

__all__ = ["describe_fits", "make_comparison_grid", "make_row_name", "write_comparison"]

_FIT, _SCORE, _SIZE, _ACCEPTED = "fit, s", "score, s per 1000", "size, MB", "ID let through, %"
_WARNED = "†"
_FAILED = "–"
_FIGURE = re.compile(r"\d[\d.,e+-]*")
_INTERVAL = "with 95% intervals"


def make_comparison_grid(comparison: Comparison, *, costs: bool = True) -> Grid:
    """Return AUROC and FPR95 on every OOD set, with the best and the second of each block marked, and the costs.

    Methods that learn from AUX sequences have a block of their own. Without `costs`, the table is narrower.
    """
    alone = [result for result in comparison.results if not result.entry.uses_aux]
    supervised = [result for result in comparison.results if result.entry.uses_aux]
    groups = {"without AUX": alone, "with AUX": supervised} if supervised else {None: alone}
    cells: dict[tuple[str, str], Cell] = {}
    for group in groups.values():
        whole = [result for result in group if not result.failures]
        for dataset in comparison.datasets:
            cells |= {(name, dataset): cell for name, cell in _make_metric_cells(whole, dataset).items()}
        for result in whole:
            cells |= {
                (make_row_name(result), column): (Figure(text),) for column, text in _format_costs(result).items()
            }
    wanted = (_FIT, _SCORE, _SIZE, _ACCEPTED) if costs else (_ACCEPTED,)
    facts = [column for column in wanted if any(column == known for _, known in cells)]
    blocks = [Block(title, [make_row_name(result) for result in group]) for title, group in groups.items() if group]
    legend, notes = _make_legend(comparison, costs), describe_fits(comparison.results)
    return Grid(blocks, [*comparison.datasets, *facts], cells, legend, notes)


def make_row_name(result: Result, label: str | None = None) -> str:
    """Return the label of a result in a table, with the mark of its note if a fit warned."""
    label = result.entry.label if label is None else label
    return f"{label} {_WARNED}" if any(run.warnings for run in result.runs) else label


def _make_metric_cells(group: Sequence[Result], dataset: str) -> dict[str, Cell]:
    shown = {}
    for metric, highest in (("auroc", True), ("fpr95", False)):
        values = {make_row_name(result): result.summarize(dataset, metric).mean for result in group}
        ranks = mark_best(values, 1, highest=highest, second=True)
        shown[metric] = {
            name: Figure(f"{values[name]:.1f}{_format_deviation(result, dataset, metric)}", ranks[name])
            for name, result in zip(values, group, strict=True)
        }
    return {name: (figure, shown["fpr95"][name]) for name, figure in shown["auroc"].items()}


def _format_deviation(result: Result, dataset: str, metric: str) -> str:
    """Return the standard deviation over the splits; for a single split, the 95% interval if there is one."""
    reach = result.summarize(dataset, metric).std
    if reach is None:
        (row,) = [dict(row) for row in result.runs[0].rows if row["dataset"] == dataset]
        return format_interval(row[f"{metric}_low"], row[f"{metric}_high"], 1)
    return f" ±{reach:.1f}" if reach < 9.95 else f" ±{reach:.0f}"


def _format_costs(result: Result) -> dict[str, str]:
    costs = {
        _FIT: _round(result.fit_seconds),
        _SCORE: _round(result.seconds_per_thousand),
        _SIZE: _round(result.artefact_bytes / 1e6),
    }
    if result.accepted is not None:
        costs[_ACCEPTED] = f"{result.accepted.mean:.1f}"
    return costs


def _round(value: float) -> str:
    """Return at least two significant digits, as far as they mean something: 123, 12, 1.2, 0.12, 0.012."""
    digits = 0 if value >= 10 else 1 if value >= 1 else 2 if value >= 0.1 else 3
    return f"{value:.{digits}f}"


def _make_legend(comparison: Comparison, costs: bool) -> str:
    plan = comparison.plan
    spread = f"mean ± standard deviation over {plan.splits} splits" if plan.splits > 1 else _INTERVAL
    if plan.splits > 1 and any(len(result.runs) == 1 for result in comparison.results if not result.failures):
        spread += f" ({_INTERVAL} for methods without a seed, for which splits of whole stores are all the same)"
    sentences = [
        f"AUROC (higher is better) and FPR95 (lower is better) in percent, {spread}; the best of a column is bold, the "
        "second underlined.",
    ]
    if costs:
        sentences.append("Costs: seconds of a fit, seconds to score 1000 sequences, size of the saved detector.")
    if plan.id_validation is not None:
        sentences.append(f"A threshold from validation sequences is to let {ACCEPT:.0%} of ID sequences through.")
    return " ".join(sentences)


def describe_fits(results: Iterable[Result]) -> list[str]:
    """Return notes on failures and warnings of fits: how many there were, and the first.

    Results with the same note share it. Every kind of warning has its own note.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for result in results:
        label, failures = result.entry.label, result.failure_notes
        if failures:
            count = f"{len(failures)} of {format_count(len(result.runs) + len(failures), 'split')} failed, the first:"
            found.setdefault((_FAILED, f"{count} {failures[0]}"), []).append(label)
        for first, times in _count_warnings(result.runs):
            count = f"{times} of {format_count(len(result.runs), 'fit')} warned, the first:"
            found.setdefault((_WARNED, f"{count} {first}"), []).append(label)
    return [f"{mark} {', '.join(labels)}: {reason}" for (mark, reason), labels in found.items()]


def _count_warnings(runs: Sequence[Run]) -> list[tuple[str, int]]:
    """Return the first warning of every kind, and the number of fits with that kind; a kind differs in digits alone."""
    kinds: dict[str, list[str]] = {}
    for run in runs:
        own: dict[str, str] = {}
        for message in run.warnings:
            own.setdefault(_FIGURE.sub("", message), message)
        for kind, message in own.items():
            kinds.setdefault(kind, []).append(message)
    return [(messages[0], len(messages)) for messages in kinds.values()]


def write_comparison(comparison: Comparison, folder: Path, *, costs: bool = True) -> list[Path]:
    """Write `results.json`, `table.md`, `table.tex` and `table.html`, each atomically, and return their paths."""
    grid = make_comparison_grid(comparison, costs=costs)
    write_json(folder / "results.json", comparison.to_json())
    tables = {
        "table.md": format_markdown(grid),
        "table.tex": format_latex(grid),
        "table.html": format_html(grid, "Comparison of out-of-distribution detectors"),
    }
    for name, text in tables.items():
        with atomic_file(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [folder / name for name in ("results.json", *tables)]
