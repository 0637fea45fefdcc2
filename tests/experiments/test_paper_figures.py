"""The paper's figures as data, and its claims."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from types import SimpleNamespace
from typing import Any, cast

import pytest

from apood.evaluation.result import MEAN, ResultRow, Run
from apood.experiments.paper.catalogue import CATALOGUE, experiment
from apood.experiments.paper.claims import Check, ahead_of, best_mean, rising
from apood.experiments.paper.entries import Entry
from apood.experiments.paper.findings import Table
from apood.experiments.paper.published import Published, published
from apood.experiments.paper.scaling import _claims, _grid
from apood.experiments.paper.settings import Settings
from apood.experiments.paper.study import Scene, Study
from apood.experiments.paper.supervised import _always_best, _counts, with_all_aux, with_what_is_lacking
from apood.experiments.paper.tables import tables_of
from apood.experiments.paper.tasks import SUMMARIZATION
from apood.experiments.paper.trials import Result
from apood.report.grid import Grid

TABLES = {name: table for name in CATALOGUE if (table := published(name)) is not None}


def test_the_tables_of_the_paper():
    assert {table.table for table in TABLES.values()} == {f"table {number}" for number in range(1, 11)}
    assert all(listed.shows.startswith(TABLES[name].table) for name, listed in CATALOGUE.items() if name in TABLES)


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.table)
def test_a_mean_is_that_of_its_row(table: Published):
    """A digit that was copied wrongly would show."""
    for (mode, row, column), figures in table.cells.items():
        assert 0 <= figures.auroc <= 100 and 0 <= figures.fpr95 <= 100
        if column == MEAN:
            own = [table.cells[mode, row, name] for name in table.columns]
            assert figures.auroc == pytest.approx(fmean(one.auroc for one in own), abs=0.015)
            assert figures.fpr95 == pytest.approx(fmean(one.fpr95 for one in own), abs=0.015)


def test_some_figures():
    assert TABLES["summarization"].cells["input", "AP-OOD", MEAN] == (98.91, 4.67)
    assert TABLES["translation"].cells["output", "AP-OOD", MEAN] == (77.38, 70.37)
    assert TABLES["audio"].cells["input", "MSP", "Machines"] == (88.05, 36.43)


def test_the_mean_beside_other_sets_is_that_over_the_shared_ones():
    table = TABLES["summarization"]
    whole = ("CNN/DM", "Newsroom", "Reddit", "Samsum")
    assert table.figures("input", "KNN", MEAN, (*whole, "more")) == (80.38, 60.56)
    assert table.figures("input", "KNN", MEAN, ("CNN/DM", "Samsum", "more")) == (76.58, 51.24)
    assert table.figures("input", "KNN", MEAN, ("more",)) is None
    assert table.figures("input", "KNN", "more", whole) is None
    assert table.figures("input", "Entropy", MEAN, whole) is None


def test_sets_are_known_by_the_names_of_their_presets():
    assert SUMMARIZATION.column("cnn_dailymail") == SUMMARIZATION.column("cnn/dm") == "CNN/DM"
    assert SUMMARIZATION.column("reuters") == "reuters"


def result(label: str, auroc: float, fpr95: float = 50.0, **entry: Any) -> Result:
    row = cast(ResultRow, {"method": label, "dataset": MEAN, "auroc": auroc, "fpr95": fpr95})
    return Result("input", Entry(label, "knn", **entry), {}, [Run(0, None, [row], None, 0.0, 0.0, 0, [])])


def test_a_row_whose_fits_warned_bears_the_mark_of_its_note():
    plain, warned = result("a", 90.0), result("b", 80.0)
    warned = replace(warned, splits=[replace(warned.splits[0], warnings=["odd!"])])
    failed = replace(warned, entry=Entry("c", "knn"), failures={2: "no"})
    study = cast(Study, SimpleNamespace(ood=(MEAN,), seeds=1, recipe="paper", left_out=(), selections={}))
    (table,) = tables_of(study, [plain, warned, failed], None)
    assert table.grid.methods == ["a", "b †", "c †"]
    assert [table.grid.cells[name, MEAN][0].text for name in ("a", "b †")] == ["90.0", "80.0"]
    assert table.grid.notes == [
        "† b, c: 1 of 1 fit warned, the first: odd!",
        "– c: 1 of 2 splits failed, the first: split 2: no",
    ]


def size(heads: int, queries: int, auroc: float) -> Result:
    found = result(f"M = {heads} and T = {queries}", auroc)
    return replace(found, parameters={"heads": heads, "queries": queries, "beta": 0.5})


def test_scaling_says_what_failed_what_warned_and_of_which_sets_the_papers_mean_is():
    warned = size(1, 4, 91.0)
    warned = replace(warned, splits=[replace(warned.splits[0], warnings=["odd!"])])
    failed = replace(size(1, 1, 90.0), splits=[], failures={1: "no memory"})
    largest = size(1024, 16, 95.0)
    best = {(1, 4): warned, (1024, 16): largest}
    study = cast(Study, SimpleNamespace(ood=("CNN/DM", "more"), seeds=1, left_out=("Newsroom",)))
    grid = _grid([failed, warned, largest], best, study)
    assert ("M = 1", "T = 1") not in grid.cells
    assert [grid.cells[f"M = {m}", f"T = {t}"][0].text for m, t in best] == ["91.0 †", "95.0 (99.4)"]
    assert grid.notes == [
        "– M = 1 and T = 1: 1 of 1 split failed, the first: split 1: no memory",
        "† M = 1 and T = 4: 1 of 1 fit warned, the first: odd!",
    ]
    assert "(figure 4, a mean over CNN/DM, Newsroom, Reddit, Samsum)" in grid.legend
    assert grid.legend.endswith("Sets that are not here: Newsroom.")


def test_no_rise_is_told_where_a_size_failed():
    sizes = [(1, 1), (16, 1), (128, 1), (1024, 1), (1024, 4), (1024, 16)]
    best = {one: size(*one, 90.0 + place) for place, one in enumerate(sizes)}
    assert [claim.holds for claim in _claims(best)] == [True, True]
    del best[16, 1]
    assert [claim.holds for claim in _claims(best)] == [None, True]


@pytest.mark.parametrize(("recipe", "beta"), [("paper", "1/√D"), ("robust", "set by the spread of the similarities")])
def test_a_note_says_which_settings_are_given_and_which_are_the_recipes(recipe: str, beta: str):
    sounds = replace(result("AP-OOD", 90.0), entry=Entry("AP-OOD", "ap-ood", {"heads": 128, "queries": 8}))
    study = cast(Study, SimpleNamespace(ood=(MEAN,), seeds=1, recipe=recipe, left_out=(), selections={}))
    (table,) = tables_of(study, [sounds], None)
    assert table.grid.notes == [f"AP-OOD has M = 128, T = 8 and the defaults of its recipe ({recipe}: β is {beta})."]


@pytest.mark.parametrize(("aux", "lacks"), [(15, True), (16, False)])
def test_a_table_says_what_is_not_in_it(aux: int, lacks: bool):
    table = Table("Input OOD", Grid([], [], {}, "", ["first"]))
    found = with_what_is_lacking(table, Scene("input", 16, aux, Settings())).grid.notes
    sentence = "Relative Mahalanobis is not here: 15 AUX sequences are fewer than D = 16."
    assert found == ["first", *([sentence] if lacks else [])]


def held(check: Check, results: Sequence[Result]) -> bool | str | None:
    claim = check("input", results)
    return "not about these" if claim is None else claim.holds


def test_claims():
    results = [result("a", 90.0), result("b", 80.0), result("c", 70.0)]
    assert held(best_mean("a"), results) is True
    assert held(best_mean("b"), results) is False
    assert held(best_mean("b"), results[1:]) is True
    assert held(best_mean("d"), results) == "not about these"
    assert held(ahead_of(["a", "b"], ["c"]), results) is True
    assert held(ahead_of(["a", "c"], ["b"]), results) is False
    assert held(ahead_of(["a"], ["d"]), results) == "not about these"
    assert rising("x", [1.0, 2.0, 2.0]).holds is True
    assert rising("x", [1.0, 0.5]).holds is False
    assert rising("x", [1.0, 1.0, 1.0]).holds is False
    assert rising("x", [1.0]).holds is None


def test_a_row_that_is_not_in_the_paper_refutes_none_of_its_claims():
    assert held(best_mean("a"), [result("a", 90.0), result("b", 80.0), result("long", 99.0, extra=True)]) is True


def test_nothing_is_told_of_a_row_that_failed():
    failed = replace(result("b", 80.0), failures={1: "too little memory"})
    assert held(best_mean("a"), [result("a", 90.0), failed]) is None
    assert held(ahead_of(["a", "b"], ["c"]), [result("a", 90.0), failed, result("c", 70.0)]) is None


def test_the_table_of_a_mode_has_the_rows_with_most_outliers():
    rows = [result("a", 90.0, aux=8), result("b", 90.0, aux=23), result("a", 90.0, aux=23)]
    assert with_all_aux(rows) == rows[1:]


def test_a_count_that_is_nearly_all_is_left_out():
    assert _counts(Scene("input", 16, 1040, Settings())) == [0, 8, 64, 512, 1040]
    assert _counts(Scene("input", 16, 1200, Settings())) == [0, 8, 64, 512, 1024, 1200]
    assert _counts(Scene("input", 1024, 10_000, Settings())) == [0, 8, 64, 512, 1024, 4096, 10_000]  # as in the paper


def test_best_with_every_count():
    rows = [result("AP-OOD", 80.0), result("Deep SAD", 70.0), result("AP-OOD", 90.0, aux=8)]
    held_here = _always_best("input", [*rows, result("Deep SAD", 85.0, aux=8)])
    assert (held_here.sentence, held_here.holds) == ("AP-OOD has the best mean AUROC at every N' (input)", True)
    assert held_here.because == "N' = 0: AP-OOD 80.00, Deep SAD 70.00; N' = 8: AP-OOD 90.00, Deep SAD 85.00"
    ahead = result("Deep SAD", 95.0, aux=8)
    lost = _always_best("input", [*rows, ahead])
    assert (lost.holds, lost.because) == (False, "N' = 8: AP-OOD 90.00, Deep SAD 95.00")
    assert _always_best("input", [*rows, replace(ahead, failures={1: "no"})]).holds is None


def test_lower_is_better_of_some():
    results = [result("a", 70.0, 10.0), result("b", 80.0, 20.0)]
    assert held(ahead_of(["a"], ["b"]), results) is False
    assert held(ahead_of(["a"], ["b"], "fpr95"), results) is True


@pytest.mark.parametrize("name", TABLES)
def test_claims_hold_of_the_papers_own_tables(name: str):
    checks = getattr(experiment(name), "checks", (best_mean("AP-OOD"),))
    said = []
    for mode in ("input", "output"):
        rows = [row for kind, row, column in TABLES[name].cells if kind == mode and column == MEAN]
        results = [result(row, *TABLES[name].cells[mode, row, MEAN]) for row in rows]
        said += [held(check, results) for check in checks]
    assert set(said) <= {True, "not about these"}
    assert True in said
