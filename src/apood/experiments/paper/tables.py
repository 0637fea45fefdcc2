"""Results as tables, each figure beside the one that the paper has in its place."""

from collections.abc import Sequence

from apood.detectors.ap_ood.detector import APOOD
from apood.evaluation.result import MEAN, Spread
from apood.experiments.paper.findings import Table
from apood.experiments.paper.published import Published
from apood.experiments.paper.study import Study
from apood.experiments.paper.trials import Result
from apood.report.comparison import fit_notes, row_name
from apood.report.grid import Block, Cell, Figure, Grid, marks

__all__ = ["lacking_sets", "name_of", "notes_of", "shown", "tables_of"]

_DIGITS = 1
_SYMBOLS = {"heads": "M", "queries": "T", "beta": "β"}
_USUAL_BETA = {"paper": "1/√D", "robust": "set by the spread of the similarities"}


def tables_of(study: Study, results: Sequence[Result], paper: Published | None) -> list[Table]:
    """One table a mode: rows down, OOD sets and their mean across."""
    return [
        Table(f"{mode.capitalize()} OOD", _grid(study, [r for r in results if r.mode == mode], paper))
        for mode in dict.fromkeys(result.mode for result in results)
    ]


def shown(spread: Spread) -> str:
    """`95.3 ±0.2`; without a deviation where there is one split."""
    if spread.std is None:
        return f"{spread.mean:.{_DIGITS}f}"
    return f"{spread.mean:.{_DIGITS}f} ±{spread.std:.{_DIGITS}f}"


def _grid(study: Study, results: Sequence[Result], paper: Published | None) -> Grid:
    whole = [result for result in results if not result.failures]
    columns = [*study.ood, *([MEAN] if len(study.ood) > 1 else [])]
    cells: dict[tuple[str, str], Cell] = {}
    for column in columns:
        lines = [_line(study, whole, column, metric, paper) for metric in ("auroc", "fpr95")]
        for result in whole:
            cells[name_of(result), column] = tuple(line[result.entry.label] for line in lines)
    names = [name_of(result) for result in results]
    return Grid([Block(None, names)], columns, cells, _legend(study, paper), notes_of(study, results))


def name_of(result: Result) -> str:
    """What a row is called: with the mark of its note where a fit warned."""
    return row_name(result.outcome)


def _line(
    study: Study, results: Sequence[Result], column: str, metric: str, paper: Published | None
) -> dict[str, Figure]:
    """One metric of a column, by row."""
    spreads = {result.entry.label: result.figure(column, metric) for result in results}
    ranks = marks(
        {label: spread.mean for label, spread in spreads.items()}, _DIGITS, highest=metric == "auroc", second=True
    )
    found = {}
    for result in results:
        label = result.entry.label
        theirs = None if paper is None else paper.figures(result.mode, label, column, study.ood)
        beside = "" if theirs is None else f" ({getattr(theirs, metric):.{_DIGITS}f})"
        found[label] = Figure(shown(spreads[label]) + beside, ranks[label])
    return found


def _chosen(study: Study, results: Sequence[Result]) -> str:
    """Of all rows that learn from as many AUX sequences."""
    found = []
    others = any(result.entry.parameters.get("similarity", "dot") != "dot" for result in results)
    similarity = " of the dot product" if others else ""
    for supervised in dict.fromkeys(result.entry.aux > 0 for result in results if result.entry.selected):
        selection = study.selections.get((results[0].mode, supervised))
        if selection is not None and selection.best is not None:
            settings = ", ".join(f"{name} {_rounded(value)}" for name, value in selection.best.settings.items())
            failed = sum(point.failure is not None for point in selection.points)
            lost = f" ({failed} of which could not be fitted)" if failed else ""
            tried = f"{len(selection.points)} settings{similarity}{lost}"
            found.append(f"{settings}, the best of {tried} by AUROC against AUX sequences")
    if not found:
        return "AP-OOD has the defaults of its recipe: there are no AUX sequences to choose settings by."
    return f"AP-OOD, but for what a row says: {'; '.join(found)}."


def _given(study: Study, result: Result) -> str:
    """Of a row whose settings were not searched for."""
    own = [f"{_SYMBOLS.get(name, name)} = {value}" for name, value in result.entry.parameters.items()]
    defaults = f"the defaults of its recipe ({study.recipe}: β is {_USUAL_BETA[study.recipe]})"
    return f"{result.entry.label} has {' and '.join([', '.join(own), defaults] if own else [defaults])}."


def _rounded(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _legend(study: Study, paper: Published | None) -> str:
    spread = f", mean ± standard deviation over {study.seeds} splits" if study.seeds > 1 else ""
    sentences = [
        f"AUROC (higher is better) and FPR95 (lower is better) in percent{spread}; the best of a column is bold, the "
        "second underlined."
    ]
    if paper is not None:
        shared = paper.shared(study.ood)
        others = "" if len(shared) == len(study.ood) else ", ours that over all"
        same = not others and len(shared) == len(paper.columns)
        of_mean = "" if same or not shared else f"; its mean is that over {', '.join(shared)}{others}"
        sentences.append(f"In parentheses the paper's figure ({paper.table}){of_mean}.")
    return " ".join([*sentences, *lacking_sets(study)])


def lacking_sets(study: Study) -> list[str]:
    """A sentence on the sets that the user left out, if there are any."""
    return [f"Sets that are not here: {', '.join(study.left_out)}."] if study.left_out else []


def notes_of(study: Study, results: Sequence[Result]) -> list[str]:
    """Which settings AP-OOD has and why, and what went wrong with rows."""
    notes = []
    if any(result.entry.selected for result in results) and study.recipe == "paper":
        notes.append(_chosen(study, results))
    notes += [_given(study, result) for result in results if result.entry.kind is APOOD and not result.entry.selected]
    return [*notes, *fit_notes(result.outcome for result in results)]
