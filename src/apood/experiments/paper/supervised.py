"""Tables 4 and 5, figures 3 and 5: methods that learn from AUX sequences, by the number N' of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from apood.experiments.paper.claims import Claim, check_claims, claim_best_mean, claim_rising
from apood.experiments.paper.experiment import Experiment, results_to_json
from apood.experiments.paper.findings import Draw, Findings, Table
from apood.experiments.paper.published import read_published
from apood.experiments.paper.study_data import Row, RowResult, StudyData, TableContext
from apood.experiments.paper.tables import make_tables
from apood.experiments.paper.tasks import SUMMARIZATION, TRANSLATION
from apood.report.pictures import Curve, draw_curves

__all__ = ["EXPERIMENTS"]

_AP_OOD = "AP-OOD"
_NEARLY_ALL = 0.9  # a larger share of the AUX sequences costs as much as all and shows the same
_SHRINKAGE = 0.01  # after a layer norm, which most models end with, a covariance without shrinkage is singular


@dataclass(frozen=True)
class SupervisedExperiment(Experiment):
    """A table with all AUX sequences, and curves from none of them to all."""

    needs_aux: bool = field(default=True, kw_only=True)

    def rows(self, context: TableContext) -> Sequence[Row]:
        """Return every method with every number of AUX sequences that it is defined for."""
        return [row for count in _list_counts(context) for row in _rows_with(count, context.dim)]

    def run(self, study: StudyData) -> Findings:
        """Return a table of the rows with all AUX sequences, and curves of all rows."""
        paper = read_published(self.name)
        results = study.run({mode: self.rows(study.context(mode)) for mode in study.modes})
        by_mode = {mode: [result for result in results if result.entry.mode == mode] for mode in study.modes}
        full = [result for own in by_mode.values() for result in _with_all_aux(own)]
        figures = {
            f"figure-{mode}": _draw_curves(study, own)
            for mode, own in by_mode.items()
            if any(not result.failures for result in own)
        }
        claims = check_claims((claim_best_mean(_AP_OOD),), full)
        claims += [
            claim
            for mode, own in by_mode.items()
            for claim in (_check_rising(mode, own), _check_always_best(mode, own))
        ]
        tables = [
            _note_missing_row(table, study.context(mode))
            for table, mode in zip(make_tables(study, full, paper), study.modes, strict=True)
        ]
        return Findings(results_to_json(results, paper, study, full), tables, figures, claims)


def _list_counts(context: TableContext) -> list[int]:
    most = min(context.aux, context.settings.aux)
    return [0, *(count for count in sorted(context.settings.aux_counts) if count <= _NEARLY_ALL * most), most]


def _rows_with(count: int, dim: int) -> list[Row]:
    """Return the rows with `count` AUX sequences; Deep SAD without any is Deep SVDD.

    As in the paper, relative Mahalanobis is left out if there are fewer than D of them.
    """
    rows = [
        Row("deep-sad", name="Deep SAD", aux=count, selected=True),
        Row("ap-ood", name=_AP_OOD, aux=count, selected=True),
    ]
    if count >= dim:
        settings = {"shrinkage": _SHRINKAGE}
        rows.insert(0, Row("relative-mahalanobis", settings, "Relative Mahalanobis", count, selected=True))
    if count:
        rows.insert(0, Row("binary-logits", name="Binary logits", aux=count, selected=True))
    return rows


def _with_all_aux(results: Sequence[RowResult]) -> list[RowResult]:
    """Return the rows of a mode that learn from most; modes differ, since empty outputs are left out."""
    most = max(result.entry.aux for result in results)
    return [result for result in results if result.entry.aux == most]


def _note_missing_row(table: Table, context: TableContext) -> Table:
    """Return the table with a note if there are too few AUX sequences for relative Mahalanobis."""
    most = _list_counts(context)[-1]
    if most >= context.dim:
        return table
    note = f"Relative Mahalanobis is not here: {most} AUX sequences are fewer than D = {context.dim}."
    return replace(table, grid=replace(table.grid, notes=[*table.grid.notes, note]))


def _draw_curves(study: StudyData, results: Sequence[RowResult]) -> Draw:
    whole = [result for result in results if not result.failures]
    labels = dict.fromkeys(result.entry.label for result in whole)

    def curve(label: str, dataset: str) -> Curve:
        own = [result for result in whole if result.entry.label == label]
        return Curve(label, {result.entry.aux: result.summarize(dataset, "auroc") for result in own})

    panels = {dataset: [curve(label, dataset) for label in labels] for dataset in study.data.ood}
    return lambda: draw_curves(panels, "AUX sequences N'", "AUROC, %")


def _check_rising(mode: str, results: Sequence[RowResult]) -> Claim:
    own = [result for result in results if result.entry.label == _AP_OOD and not result.failures]
    values = [result.mean_auroc for result in sorted(own, key=lambda result: result.entry.aux)]
    return claim_rising(f"The mean AUROC of {_AP_OOD} over N' ({mode})", values)


def _check_always_best(mode: str, results: Sequence[RowResult]) -> Claim:
    """Return the claim of figure 3, that AP-OOD is best for every number of AUX sequences."""
    check = claim_best_mean(_AP_OOD)
    reasons: dict[bool | None, list[str]] = {}
    for count in sorted({result.entry.aux for result in results}):
        claim = check(mode, [result for result in results if result.entry.aux == count])
        if claim is not None:
            reasons.setdefault(claim.holds, []).append(f"N' = {count}: {claim.because}")
    holds = next((verdict for verdict in (False, None) if verdict in reasons), True)
    because = "" if holds is None else "; ".join(reasons.get(holds, []))
    return Claim(f"{_AP_OOD} has the best mean AUROC at every N' ({mode})", holds, because)


EXPERIMENTS = (
    SupervisedExperiment("summarization-supervised", SUMMARIZATION),
    SupervisedExperiment("translation-supervised", TRANSLATION),
)
