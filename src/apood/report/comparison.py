"""The grid of a comparison: methods that learn from AUX apart from the others, and what each method costs."""

import re
from collections.abc import Iterable, Sequence

from apood.evaluation.comparison import Comparison, Contender, SplitResult
from apood.evaluation.plan import ACCEPT
from apood.report.grid import Block, Cell, Figure, Grid, marks
from apood.support.checks import format_count

__all__ = ["fit_notes", "grid_of_comparison", "row_name"]

_FIT, _SCORE, _SIZE, _ACCEPTED = "fit, s", "score, s per 1000", "size, MB", "ID let through, %"
_WARNED = "†"
_FAILED = "–"
_FIGURE = re.compile(r"\d[\d.,e+-]*")
_INTERVAL = "± half of the 95% interval"


def grid_of_comparison(comparison: Comparison) -> Grid:
    """AUROC and FPR95 on every OOD set, the best and the second of each block marked, and the costs."""
    alone = [contender for contender in comparison.contenders if not contender.method.uses_aux]
    supervised = [contender for contender in comparison.contenders if contender.method.uses_aux]
    groups = {"without AUX": alone, "with AUX": supervised} if supervised else {None: alone}
    cells: dict[tuple[str, str], Cell] = {}
    for group in groups.values():
        whole = [contender for contender in group if not contender.failures]
        for dataset in comparison.datasets:
            cells |= {(name, dataset): cell for name, cell in _metric_cells(whole, dataset).items()}
        for contender in whole:
            cells |= {(_name(contender), column): (Figure(text),) for column, text in _costs(contender).items()}
    costs = [column for column in (_FIT, _SCORE, _SIZE, _ACCEPTED) if any(column == known for _, known in cells)]
    blocks = [Block(title, [_name(contender) for contender in group]) for title, group in groups.items() if group]
    return Grid(blocks, [*comparison.datasets, *costs], cells, _legend(comparison), _notes(comparison.contenders))


def _name(contender: Contender) -> str:
    return row_name(contender.method.label, contender.splits)


def row_name(label: str, splits: Sequence[SplitResult]) -> str:
    """What a method is called in a table: with the mark of its note where a fit warned."""
    return f"{label} {_WARNED}" if any(split.warnings for split in splits) else label


def _metric_cells(group: Sequence[Contender], dataset: str) -> dict[str, Cell]:
    shown = {}
    for metric, highest in (("auroc", True), ("fpr95", False)):
        values = {_name(contender): contender.figure(dataset, metric).mean for contender in group}
        ranks = marks(values, 1, highest=highest, second=True)
        shown[metric] = {
            _name(contender): Figure(
                f"{values[_name(contender)]:.1f}{_reach(contender, dataset, metric)}", ranks[_name(contender)]
            )
            for contender in group
        }
    return {name: (figure, shown["fpr95"][name]) for name, figure in shown["auroc"].items()}


def _reach(contender: Contender, dataset: str, metric: str) -> str:
    """The standard deviation over the splits; of a single one half of its 95% interval, which a mean does not have."""
    reach = contender.figure(dataset, metric).std
    if reach is None:
        (row,) = [dict(row) for row in contender.splits[0].rows if row["dataset"] == dataset]
        low, high = row[f"{metric}_low"], row[f"{metric}_high"]
        if not isinstance(low, float) or not isinstance(high, float):
            return ""
        reach = (high - low) / 2
    return f" ±{reach:.1f}" if reach < 9.95 else f" ±{reach:.0f}"


def _costs(contender: Contender) -> dict[str, str]:
    costs = {
        _FIT: _rounded(contender.fit_seconds),
        _SCORE: _rounded(contender.seconds_per_thousand),
        _SIZE: _rounded(contender.artefact_bytes / 1e6),
    }
    if contender.accepted is not None:
        costs[_ACCEPTED] = f"{contender.accepted.mean:.1f}"
    return costs


def _rounded(value: float) -> str:
    """Two digits at least where they mean something: 123, 12, 1.2, 0.12, 0.012."""
    digits = 0 if value >= 10 else 1 if value >= 1 else 2 if value >= 0.1 else 3
    return f"{value:.{digits}f}"


def _legend(comparison: Comparison) -> str:
    plan = comparison.plan
    spread = f"mean ± standard deviation over {plan.splits} splits" if plan.splits > 1 else _INTERVAL
    if plan.splits > 1 and any(len(c.splits) == 1 for c in comparison.contenders if not c.failures):
        spread += f" ({_INTERVAL} for methods without a seed, to which splits of whole stores are all the same)"
    sentences = [
        f"AUROC (higher is better) and FPR95 (lower is better) in percent, {spread}; the best of a column is bold, the "
        "second underlined.",
        "Costs: seconds of a fit, seconds to score 1000 sequences, size of the saved detector.",
    ]
    if plan.id_validation is not None:
        sentences.append(f"A threshold from validation sequences is to let {ACCEPT:.0%} of ID sequences through.")
    return " ".join(sentences)


def _notes(contenders: Sequence[Contender]) -> list[str]:
    return fit_notes([(one.method.label, one.splits, one.failures) for one in contenders])


def fit_notes(rows: Iterable[tuple[str, Sequence[SplitResult], Sequence[str]]]) -> list[str]:
    """Why methods have no figures, and what their fits warned of, each kind: how often, and the first of its reasons.

    A row is a label, its splits, and why others failed. Rows with the same note share it.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for label, splits, failures in rows:
        if failures:
            count = f"{len(failures)} of {format_count(len(splits) + len(failures), 'split')} failed, the first:"
            found.setdefault((_FAILED, f"{count} {failures[0]}"), []).append(label)
        for first, times in _kinds(splits):
            count = f"{times} of {format_count(len(splits), 'fit')} warned, the first:"
            found.setdefault((_WARNED, f"{count} {first}"), []).append(label)
    return [f"{mark} {', '.join(labels)}: {reason}" for (mark, reason), labels in found.items()]


def _kinds(splits: Sequence[SplitResult]) -> list[tuple[str, int]]:
    """The first of every kind of warning, and of how many fits it came; those of a kind differ in figures alone."""
    kinds: dict[str, list[str]] = {}
    for split in splits:
        own: dict[str, str] = {}
        for message in split.warnings:
            own.setdefault(_FIGURE.sub("", message), message)
        for kind, message in own.items():
            kinds.setdefault(kind, []).append(message)
    return [(messages[0], len(messages)) for messages in kinds.values()]
