"""The paper's figures as data, and its claims."""

from statistics import fmean
from typing import cast

import pytest

from apood.evaluation.comparison import SplitResult
from apood.evaluation.rows import MEAN, ResultRow
from apood.experiments.paper.catalogue import CATALOGUE
from apood.experiments.paper.claims import ahead_of, best_mean, rising
from apood.experiments.paper.entries import Entry
from apood.experiments.paper.published import Published, published
from apood.experiments.paper.tasks import SUMMARIZATION
from apood.experiments.paper.trials import Result

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


def result(label: str, auroc: float) -> Result:
    row = cast(ResultRow, {"method": label, "dataset": MEAN, "auroc": auroc})
    return Result("input", Entry(label, "knn"), {}, [SplitResult(0, None, [row], None, 0.0, 0.0, 0, [])])


def test_claims():
    results = [result("a", 90.0), result("b", 80.0), result("c", 70.0)]
    assert best_mean("a")("input", results).holds is True
    assert best_mean("b")("input", results).holds is False
    assert best_mean("d")("input", results).holds is None
    assert ahead_of(["a", "b"], ["c"])("input", results).holds is True
    assert ahead_of(["a", "c"], ["b"])("input", results).holds is False
    assert ahead_of(["a"], ["d"])("input", results).holds is None
    assert rising("x", [1.0, 2.0, 2.0]).holds is True
    assert rising("x", [1.0, 0.5]).holds is False
    assert rising("x", [1.0]).holds is None
