"""The model of costs: known sizes of models, the page of its tables, and its simulation against a formula."""

from pathlib import Path

import pytest

from benchmarks.costs import CHECKS, H200, MODELS, Failures, list_parts, predict_rate, render

PAGE = Path(__file__).parents[2] / "benchmarks" / "COSTS.md"


def test_the_shapes_have_the_weights_of_the_models():
    weights = [model.weights / 1e6 for model in MODELS.values()]
    assert weights == pytest.approx([10.617, 106.17, 973.1, 6979.3], rel=1e-3)  # without their embeddings


def test_the_page_has_the_tables_of_the_model():
    assert render() in PAGE.read_text(encoding="utf-8")


def test_whole_runs_are_predicted_from_their_parts():
    for name, rates, measured in CHECKS:
        assert predict_rate(*rates) == pytest.approx(measured, rel=0.06), name


def test_the_encoders_run_as_fast_as_they_were_measured():
    rates = [1 / list_parts(MODELS[name], H200)["encoder"] for name in ("MiniLM (22M)", "SmolLM2-135M")]
    assert rates == pytest.approx([4_777_146, 614_448], rel=0.01)


@pytest.mark.parametrize(("hours", "commit"), [(1, 600), (4, 30), (0.25, 300)])
def test_simulated_failures_cost_what_the_formula_says(hours: float, commit: float):
    failures = Failures(mean_time=hours * 3600, unit=600, commit=commit, restart=60)
    lost, end = failures.simulate(units=8_000, workers=8, seed=1)
    assert lost == pytest.approx(failures.expect_extra(), rel=0.08)
    assert end >= 1 + lost


def test_without_failures_nothing_is_lost():
    failures = Failures(mean_time=1e15, unit=60, commit=60)
    assert failures.simulate(units=100, workers=10) == (0.0, 1.0)
