"""Tables of results, with the paper's figure beside each of ours."""

from collections.abc import Sequence

from apood.detectors.ap_ood.detector import APOOD
from apood.evaluation.result import MEAN, Spread
from apood.experiments.paper.findings import Table
from apood.experiments.paper.published import Published
from apood.experiments.paper.study_data import RowResult, StudyData
from apood.report.comparison import describe_fits, make_row_name
from apood.report.grid import Block, Cell, Figure, Grid, mark_best
from apood.report.heatmap import format_setting

__all__ = ["describe_left_out", "describe_rows", "format_spread", "make_tables"]

_SYMBOLS = {"heads": "M", "queries": "T", "beta": "β"}
_DEFAULT_BETA = {"paper": "1/√D", "reference": "1", "robust": "set by the spread of the similarities"}


def make_tables(study: StudyData, results: Sequence[RowResult], paper: Published | None) -> list[Table]:
    """Return a table per mode: a line per row, a column per OOD set and one for their mean."""
    return [
        Table(f"{mode.capitalize()} OOD", _make_grid(study, [r for r in results if r.entry.mode == mode], paper))
        for mode in dict.fromkeys(result.entry.mode for result in results)
    ]


def format_spread(spread: Spread) -> str:
    """Return `95.3 ±0.2`, without a deviation if there is one split."""
    return f"{spread.mean:.1f}" + ("" if spread.std is None else f" ±{spread.std:.1f}")


def _make_grid(study: StudyData, results: Sequence[RowResult], paper: Published | None) -> Grid:
    whole = [result for result in results if not result.failures]
    columns = [*study.data.ood, *([MEAN] if len(study.data.ood) > 1 else [])]
    cells: dict[tuple[str, str], Cell] = {}
    for column in columns:
        lines = [_format_metric(study, whole, column, metric, paper) for metric in ("auroc", "fpr95")]
        for result in whole:
            cells[make_row_name(result), column] = tuple(line[result.entry.label] for line in lines)
    names = [make_row_name(result) for result in results]
    return Grid([Block(None, names)], columns, cells, _make_legend(study, paper), describe_rows(study, results))


def _format_metric(
    study: StudyData, results: Sequence[RowResult], column: str, metric: str, paper: Published | None
) -> dict[str, Figure]:
    """Return one metric of a column, by row."""
    spreads = {result.entry.label: result.summarize(column, metric) for result in results}
    means = {label: spread.mean for label, spread in spreads.items()}
    ranks = mark_best(means, 1, highest=metric == "auroc", second=True)
    found = {}
    for result in results:
        label = result.entry.label
        theirs = None if paper is None else paper.figures(result.entry.mode, label, column, study.data.ood)
        beside = "" if theirs is None else f" ({getattr(theirs, metric):.1f})"
        found[label] = Figure(format_spread(spreads[label]) + beside, ranks[label])
    return found


def _make_legend(study: StudyData, paper: Published | None) -> str:
    spread = f", mean ± standard deviation over {study.seeds} splits" if study.seeds > 1 else ""
    sentences = [
        f"AUROC (higher is better) and FPR95 (lower is better) in percent{spread}; the best of a column is bold, the "
        "second underlined."
    ]
    if paper is not None:
        shared = paper.shared(study.data.ood)
        others = "" if len(shared) == len(study.data.ood) else ", ours that over all"
        same = not others and len(shared) == len(paper.columns)
        of_mean = "" if same or not shared else f"; its mean is that over {', '.join(shared)}{others}"
        sentences.append(f"In parentheses the paper's figure ({paper.table}){of_mean}.")
    return " ".join([*sentences, *describe_left_out(study)])


def describe_left_out(study: StudyData) -> list[str]:
    """Return a sentence on the paper's OOD sets that are missing, if there are any."""
    return [f"Sets that are not here: {', '.join(study.data.left_out)}."] if study.data.left_out else []


def describe_rows(study: StudyData, results: Sequence[RowResult]) -> list[str]:
    """Return notes on the settings that were selected, and on warnings and failures of rows."""
    notes = []
    if study.recipe != "robust":
        kinds = dict.fromkeys(result.entry.kind for result in results if result.entry.selected)
        for kind in kinds:
            notes += _describe_selected(study, [result for result in results if result.entry.kind is kind])
    for result in results:
        if result.entry.kind is APOOD and not result.entry.selected:
            own = [f"{_SYMBOLS.get(name, name)} = {value}" for name, value in result.entry.parameters.items()]
            defaults = f"the defaults of its recipe ({study.recipe}: β is {_DEFAULT_BETA[study.recipe]})"
            notes.append(f"{result.entry.label} has {' and '.join([', '.join(own), defaults] if own else [defaults])}.")
    return [*notes, *describe_fits(results)]


def _describe_selected(study: StudyData, results: Sequence[RowResult]) -> list[str]:
    """Return a note on the settings that were selected for a method, the method of all `results`, if any were."""
    found, kind = [], results[0].entry.kind
    name = "AP-OOD" if kind is APOOD else results[0].entry.label
    others = any(result.entry.parameters.get("similarity", "dot") != "dot" for result in results)
    similarity = " of the dot product" if others else ""
    for supervised in dict.fromkeys(result.entry.aux > 0 for result in results if result.entry.selected):
        selection = study.selections.get((results[0].entry.mode, kind.name, supervised))
        if selection is not None and selection.best is not None:
            chosen = [f"{setting} {format_setting(value)}" for setting, value in selection.best.settings.items()]
            settings = ", ".join(chosen) or "its defaults"
            failed = sum(point.failure is not None for point in selection.points)
            lost = f" ({failed} could not be fitted)" if failed else ""
            tried = f"{len(selection.points)} settings{similarity}{lost}"
            found.append(f"{settings}, the best of {tried} by AUROC against AUX sequences")
    if not found:
        none = "AP-OOD has the defaults of its recipe: there are no AUX sequences to select settings with."
        return [none] if kind is APOOD else []
    return [f"{name}{', unless a row says otherwise' if kind is APOOD else ''}: {'; '.join(found)}."]
