"""Tables 4 and 5, figures 3 and 5: methods that learn from auxiliary outliers, over how many there are."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from apood.experiments.paper.bench import Experiment, checked, results_as_json
from apood.experiments.paper.claims import best_mean, rising
from apood.experiments.paper.entries import Entry
from apood.experiments.paper.findings import Claim, Draw, Findings, Table
from apood.experiments.paper.published import published
from apood.experiments.paper.study import Scene, Study
from apood.experiments.paper.tables import tables_of
from apood.experiments.paper.tasks import SUMMARIZATION, TRANSLATION
from apood.experiments.paper.trials import Result, carry_out, mean_auroc
from apood.report.curves import Curve, curves_of

__all__ = ["SUMMARIZATION_BENCH", "TRANSLATION_BENCH", "Supervised", "with_all_aux", "with_what_is_lacking"]

_AP_OOD = "AP-OOD"
_NEARLY_ALL = 0.9  # a point of the curves beyond says no more than the last one, and costs as much
_SHRINKAGE = 0.01  # without any, a covariance has no inverse after a layer norm, which most models end with


@dataclass(frozen=True)
class Supervised(Experiment):
    """The table of all AUX sequences, and curves from none of them to all."""

    needs_aux: bool = field(default=True, kw_only=True)

    def rows(self, scene: Scene) -> Sequence[Entry]:
        """Every method with every number of AUX sequences that it is defined for."""
        return [row for count in _counts(scene) for row in _rows(count, scene.dim)]

    def carry_out(self, study: Study) -> Findings:
        """The table has the rows with all AUX sequences; the curves and the results have all."""
        paper = published(self.name)
        results = carry_out(study, {mode: self.rows(study.scene(mode)) for mode in study.modes})
        by_mode = {mode: [result for result in results if result.mode == mode] for mode in study.modes}
        full = [result for own in by_mode.values() for result in with_all_aux(own)]
        figures = {
            f"figure-{mode}": _curves(study, own)
            for mode, own in by_mode.items()
            if any(not result.failures for result in own)
        }
        claims = checked((best_mean(_AP_OOD),), full)
        claims += [claim for mode, own in by_mode.items() for claim in (_rises(mode, own), _always_best(mode, own))]
        tables = [
            with_what_is_lacking(table, study.scene(mode))
            for table, mode in zip(tables_of(study, full, paper), study.modes, strict=True)
        ]
        return Findings(results_as_json(results, paper, study, full), tables, figures, claims)


def with_all_aux(results: Sequence[Result]) -> list[Result]:
    """Of a mode's rows those that learn from most; modes differ, since nothing is learnt from an empty output."""
    most = max(result.entry.aux for result in results)
    return [result for result in results if result.entry.aux == most]


def _counts(scene: Scene) -> list[int]:
    most = min(scene.aux, scene.settings.aux)
    return [0, *(count for count in sorted(scene.settings.aux_counts) if count <= _NEARLY_ALL * most), most]


def _rows(count: int, dim: int) -> list[Entry]:
    """Deep SAD without AUX sequences is Deep SVDD; of fewer than D there is no covariance, as in the paper."""
    rows = [Entry("Deep SAD", "deep-sad", aux=count), Entry(_AP_OOD, "ap-ood", aux=count, selected=True)]
    if count >= dim:
        rows.insert(0, Entry("Relative Mahalanobis", "relative-mahalanobis", {"shrinkage": _SHRINKAGE}, aux=count))
    if count:
        rows.insert(0, Entry("Binary logits", "binary-logits", aux=count))
    return rows


def with_what_is_lacking(table: Table, scene: Scene) -> Table:
    """The table with a note on the method that there are too few AUX sequences for."""
    most = _counts(scene)[-1]
    if most >= scene.dim:
        return table
    note = f"Relative Mahalanobis is not here: {most} AUX sequences are fewer than D = {scene.dim}."
    return replace(table, grid=replace(table.grid, notes=[*table.grid.notes, note]))


def _curves(study: Study, results: Sequence[Result]) -> Draw:
    whole = [result for result in results if not result.failures]
    labels = dict.fromkeys(result.entry.label for result in whole)

    def curve(label: str, dataset: str) -> Curve:
        own = [result for result in whole if result.entry.label == label]
        return Curve(label, {result.entry.aux: result.figure(dataset, "auroc") for result in own})

    panels = {dataset: [curve(label, dataset) for label in labels] for dataset in study.ood}
    return lambda: curves_of(panels, "AUX sequences N'", "AUROC, %")


def _rises(mode: str, results: Sequence[Result]) -> Claim:
    own = [result for result in results if result.entry.label == _AP_OOD and not result.failures]
    values = [mean_auroc(result) for result in sorted(own, key=lambda result: result.entry.aux)]
    return rising(f"The mean AUROC of {_AP_OOD} over N' ({mode})", values)


def _always_best(mode: str, results: Sequence[Result]) -> Claim:
    """As figure 3 has it, however many AUX sequences there are."""
    check = best_mean(_AP_OOD)
    told: dict[bool | None, list[str]] = {}
    for count in sorted({result.entry.aux for result in results}):
        claim = check(mode, [result for result in results if result.entry.aux == count])
        if claim is not None:
            told.setdefault(claim.holds, []).append(f"N' = {count}: {claim.because}")
    holds = next((verdict for verdict in (False, None) if verdict in told), True)
    because = "" if holds is None else "; ".join(told.get(holds, []))
    return Claim(f"{_AP_OOD} has the best mean AUROC at every N' ({mode})", holds, because)


SUMMARIZATION_BENCH = Supervised("summarization-supervised", SUMMARIZATION)
TRANSLATION_BENCH = Supervised("translation-supervised", TRANSLATION)
