"""The paper's figures as data, its claims, and the tables and notes that are made from results."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from apood.evaluation.result import MEAN, ResultRow, Run
from apood.evaluation.split import Split
from apood.experiments.paper.catalogue import CATALOGUE, load_experiment
from apood.experiments.paper.claims import Check, claim_ahead_of, claim_best_mean, claim_rising
from apood.experiments.paper.data_sets import DataSets
from apood.experiments.paper.findings import Table
from apood.experiments.paper.published import Published, read_published
from apood.experiments.paper.scaling import _check, _make_grid
from apood.experiments.paper.study_data import Row, RowResult, StudyData, TableContext
from apood.experiments.paper.supervised import _check_always_best, _list_counts, _note_missing_row, _with_all_aux
from apood.experiments.paper.tables import make_tables
from apood.experiments.paper.tasks import SUMMARIZATION, Mode, Settings
from apood.report.grid import Grid
from apood.tokens.batch import Ragged, TokenBatch

TABLES = {name: table for name in CATALOGUE if (table := read_published(name)) is not None}


def test_every_table_of_the_paper_is_there():
    assert {table.table for table in TABLES.values()} == {f"table {number}" for number in range(1, 11)}
    assert all(listed.shows.startswith(TABLES[name].table) for name, listed in CATALOGUE.items() if name in TABLES)
    assert TABLES["summarization"].cells["input", "AP-OOD", MEAN] == (98.91, 4.67)
    assert TABLES["translation"].cells["output", "AP-OOD", MEAN] == (77.38, 70.37)
    assert TABLES["audio"].cells["input", "MSP", "Machines"] == (88.05, 36.43)


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.table)
def test_means_agree_with_their_rows(table: Published):
    """A digit that was copied wrongly would show."""
    for (mode, row, column), figures in table.cells.items():
        assert 0 <= figures.auroc <= 100 and 0 <= figures.fpr95 <= 100
        if column == MEAN:
            own = [table.cells[mode, row, name] for name in table.columns]
            assert figures.auroc == pytest.approx(fmean(one.auroc for one in own), abs=0.015)
            assert figures.fpr95 == pytest.approx(fmean(one.fpr95 for one in own), abs=0.015)


def test_the_papers_mean_is_taken_over_the_shared_sets():
    table = TABLES["summarization"]
    whole = ("CNN/DM", "Newsroom", "Reddit", "Samsum")
    assert table.figures("input", "KNN", MEAN, (*whole, "more")) == (80.38, 60.56)
    assert table.figures("input", "KNN", MEAN, ("CNN/DM", "Samsum", "more")) == (76.58, 51.24)
    assert table.figures("input", "KNN", MEAN, ("more",)) is None
    assert table.figures("input", "KNN", "more", whole) is None
    assert table.figures("input", "Entropy", MEAN, whole) is None


def test_sets_may_have_the_names_of_their_presets():
    assert SUMMARIZATION.column("cnn_dailymail") == SUMMARIZATION.column("cnn/dm") == "CNN/DM"
    assert SUMMARIZATION.column("reuters") == "reuters"


def make_result(
    label: str, auroc: float, fpr95: float = 50.0, *, warnings: Sequence[str] = (), **row: Any
) -> RowResult:
    figures = cast(ResultRow, {"method": label, "dataset": MEAN, "auroc": auroc, "fpr95": fpr95})
    run = Run(0, None, [figures], None, 0.0, 0.0, 0, list(warnings))
    return RowResult(Row(row.pop("method", "knn"), name=label, **row), [run])


def make_study(**facts: Any) -> StudyData:
    data = SimpleNamespace(ood=facts.pop("ood", [MEAN]), left_out=facts.pop("left_out", ()))
    return cast(StudyData, SimpleNamespace(data=data, **{"seeds": 1, "recipe": "paper", "selections": {}} | facts))


def test_rows_with_warnings_and_failures_have_notes():
    failed = replace(make_result("c", 80.0, warnings=["odd!"]), failures={2: "no"})
    (table,) = make_tables(
        make_study(), [make_result("a", 90.0), make_result("b", 80.0, warnings=["odd!"]), failed], None
    )
    assert table.grid.methods == ["a", "b †", "c †"]
    assert [table.grid.cells[name, MEAN][0].text for name in ("a", "b †")] == ["90.0", "80.0"]
    assert table.grid.notes == [
        "† b, c: 1 of 1 fit warned, the first: odd!",
        "– c: 1 of 2 splits failed, the first: split 2: no",
    ]


def make_size(heads: int, queries: int, auroc: float, **facts: Any) -> RowResult:
    parameters = {"heads": heads, "queries": queries, "beta": 0.5}
    return make_result(f"M = {heads} and T = {queries}", auroc, method="ap-ood", parameters=parameters, **facts)


def test_the_table_of_scaling_names_failures_warnings_and_the_papers_sets():
    warned, largest = make_size(1, 4, 91.0, warnings=["odd!"]), make_size(1024, 16, 95.0)
    failed = RowResult(make_size(1, 1, 90.0).entry, [], {1: "no memory"})
    best = {(1, 4): warned, (1024, 16): largest}
    study = make_study(ood=["CNN/DM", "more"], left_out=("Newsroom",))
    grid = _make_grid([failed, warned, largest], best, study)
    assert ("M = 1", "T = 1") not in grid.cells
    assert [grid.cells[f"M = {m}", f"T = {t}"][0].text for m, t in best] == ["91.0 †", "95.0 (99.4)"]
    assert grid.notes == [
        "– M = 1 and T = 1: 1 of 1 split failed, the first: split 1: no memory",
        "† M = 1 and T = 4: 1 of 1 fit warned, the first: odd!",
    ]
    assert "(figure 4, a mean over CNN/DM, Newsroom, Reddit, Samsum)" in grid.legend
    assert grid.legend.endswith("Sets that are not here: Newsroom.")


def test_scaling_decides_nothing_if_a_size_failed():
    sizes = [(1, 1), (16, 1), (128, 1), (1024, 1), (1024, 4), (1024, 16)]
    best = {one: make_size(*one, 90.0 + place) for place, one in enumerate(sizes)}
    assert [claim.holds for claim in _check(best)] == [True, True]
    del best[16, 1]
    assert [claim.holds for claim in _check(best)] == [None, True]


@pytest.mark.parametrize(
    ("recipe", "beta"), [("paper", "1/√D"), ("reference", "1"), ("robust", "set by the spread of the similarities")]
)
def test_a_note_names_given_settings_and_the_defaults_of_the_recipe(recipe: str, beta: str):
    sounds = make_result("AP-OOD", 90.0, method="ap-ood", parameters={"heads": 128, "queries": 8})
    (table,) = make_tables(make_study(recipe=recipe), [sounds], None)
    assert table.grid.notes == [f"AP-OOD has M = 128, T = 8 and the defaults of its recipe ({recipe}: β is {beta})."]


@pytest.mark.parametrize(("aux", "missing"), [(15, True), (16, False)])
def test_a_table_names_the_row_that_it_lacks(aux: int, missing: bool):
    table = Table("Input OOD", Grid([], [], {}, "", ["first"]))
    found = _note_missing_row(table, TableContext("input", 16, aux, Settings())).grid.notes
    sentence = "Relative Mahalanobis is not here: 15 AUX sequences are fewer than D = 16."
    assert found == ["first", *([sentence] if missing else [])]


def is_held(check: Check, results: Sequence[RowResult]) -> bool | str | None:
    claim = check("input", results)
    return "not about these" if claim is None else claim.holds


def test_claims():
    results = [make_result("a", 90.0), make_result("b", 80.0), make_result("c", 70.0)]
    assert is_held(claim_best_mean("a"), results) is True
    assert is_held(claim_best_mean("b"), results) is False
    assert is_held(claim_best_mean("d"), results) == "not about these"
    assert is_held(claim_best_mean("b"), [*results[1:], make_result("not in the paper", 99.0, extra=True)]) is True
    assert is_held(claim_ahead_of(["a", "b"], ["c"]), results) is True
    assert is_held(claim_ahead_of(["a", "c"], ["b"]), results) is False
    assert is_held(claim_ahead_of(["a"], ["d"]), results) == "not about these"
    lower = [make_result("a", 70.0, 10.0), make_result("b", 80.0, 20.0)]
    assert is_held(claim_ahead_of(["a"], ["b"]), lower) is False
    assert is_held(claim_ahead_of(["a"], ["b"], "fpr95"), lower) is True
    failed = replace(results[1], failures={1: "too little memory"})
    assert is_held(claim_best_mean("a"), [results[0], failed]) is None
    assert is_held(claim_ahead_of(["a", "b"], ["c"]), [results[0], failed, results[2]]) is None
    rises = {(1.0, 2.0, 2.0): True, (1.0, 0.5): False, (1.0, 1.0, 1.0): False, (1.0,): None}
    assert {values: claim_rising("x", values).holds for values in rises} == rises


def test_the_supervised_table_has_the_rows_with_most_outliers():
    rows = [make_result("a", 90.0, aux=8), make_result("b", 90.0, aux=23), make_result("a", 90.0, aux=23)]
    assert _with_all_aux(rows) == rows[1:]


@pytest.mark.parametrize(
    ("dim", "aux", "counts"),
    [
        (16, 1040, [0, 8, 64, 512, 1040]),  # 1024 would be nearly all
        (16, 1200, [0, 8, 64, 512, 1024, 1200]),
        (1024, 10_000, [0, 8, 64, 512, 1024, 4096, 10_000]),  # as in the paper
    ],
)
def test_numbers_of_aux_sequences(dim: int, aux: int, counts: list[int]):
    assert _list_counts(TableContext("input", dim, aux, Settings())) == counts


def test_the_claim_over_all_numbers_of_aux_sequences():
    rows = [make_result("AP-OOD", 80.0), make_result("Deep SAD", 70.0), make_result("AP-OOD", 90.0, aux=8)]
    held = _check_always_best("input", [*rows, make_result("Deep SAD", 85.0, aux=8)])
    assert (held.sentence, held.holds) == ("AP-OOD has the best mean AUROC at every N' (input)", True)
    assert held.because == "N' = 0: AP-OOD 80.00, Deep SAD 70.00; N' = 8: AP-OOD 90.00, Deep SAD 85.00"
    ahead = make_result("Deep SAD", 95.0, aux=8)
    lost = _check_always_best("input", [*rows, ahead])
    assert (lost.holds, lost.because) == (False, "N' = 8: AP-OOD 90.00, Deep SAD 95.00")
    assert _check_always_best("input", [*rows, replace(ahead, failures={1: "no"})]).holds is None


@pytest.mark.parametrize("name", TABLES)
def test_claims_hold_on_the_papers_own_tables(name: str):
    checks = getattr(load_experiment(name), "checks", (claim_best_mean("AP-OOD"),))
    found = []
    for mode in ("input", "output"):
        rows = [row for kind, row, column in TABLES[name].cells if kind == mode and column == MEAN]
        results = [make_result(row, *TABLES[name].cells[mode, row, MEAN]) for row in rows]
        found += [is_held(check, results) for check in checks]
    assert set(found) <= {True, "not about these"}
    assert True in found


def make_outputs(lengths: list[int]) -> TokenBatch:
    generator = torch.Generator().manual_seed(0)
    batch = TokenBatch.from_lengths(torch.randn(sum(lengths), 4, generator=generator), lengths)
    logprobs = -torch.rand(sum(lengths), generator=generator)
    return batch.with_channels(token_logprobs=Ragged.from_lengths(logprobs, torch.tensor(lengths)))


class StudyOfOutputs(StudyData):
    """Outputs in memory; the training sequences have no log-probabilities, and some test outputs are empty."""

    def _make_split(self, mode: Mode, number: int) -> Split:  # noqa: ARG002
        bare = TokenBatch.from_lengths(torch.zeros(6, 4), [3, 3])
        return Split(bare, make_outputs([3, 0, 2, 4] * 5), {"x": make_outputs([3] * 6)}, seed=number)


@pytest.mark.filterwarnings("ignore:5 of 20 sequences have no token_logprobs")
def test_a_method_without_tokens_is_fitted_on_the_nonempty_test_sequences(tmp_path: Path):
    study = StudyOfOutputs(DataSets({}, Settings()), {}, 1, "paper", tmp_path)
    (result,) = study.run({"output": [Row("perplexity", name="Perplexity")]})
    (first, _) = result.runs[0].rows
    assert (first["dataset"], first["n_id"], first["n_ood"]) == ("x", 20, 6)
