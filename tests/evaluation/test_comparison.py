"""A whole comparison: right figures, nothing done twice, and no work lost."""

import json
import math
import warnings
from dataclasses import replace
from statistics import fmean, stdev

import numpy as np
import pytest
import torch
from builders import correlated_sequences

from apood.decisions.conformal import conformal_threshold
from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.knn import KNN
from apood.detectors.length import Length
from apood.detectors.mahalanobis import Mahalanobis
from apood.evaluation.comparison import ComparisonPlan, compare, draw_splits
from apood.evaluation.entry import Entry
from apood.evaluation.metrics import auroc, fpr95
from apood.evaluation.result import MEAN, METRICS, Spread
from apood.support.errors import FitWarning, InputError
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter

TOO_MANY = Entry("knn", {"k": 50})
REASON = "k=50 neighbours need at least as many ID sequences, got 48."
SETS = {
    "train": (60, 0.0),
    "test": (30, 0.0),
    "validation": (40, 0.0),
    "near": (20, 1.0),
    "far": (25, 4.0),
    "aux": (12, 2.0),
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    for seed, (name, (count, shift)) in enumerate(SETS.items()):
        with TokenStoreWriter(folder / name, dim=6) as writer:
            writer.append(correlated_sequences(count, 6, seed=seed, shift=shift))
    return folder


@pytest.fixture
def plan(stores):
    return ComparisonPlan(
        ood={"near": stores / "near", "far": stores / "far"}, id_train=stores / "train", id_test=stores / "test",
        methods=[Entry("mahalanobis"), Entry("knn", {"k": 2})], splits=2,
    )  # fmt: skip


@pytest.mark.parametrize("jobs", [1, 2])
def test_arrays_classes_and_detectors_give_the_figures_of_stores_and_names(stores, plan, jobs):
    def arrays(name):
        return [tokens.numpy() for tokens in TokenStore(stores / name).select(slice(None))]

    given = ComparisonPlan(
        ood={"near": arrays("near"), "far": str(stores / "far")}, id_train=arrays("train"), id_test=arrays("test"),
        methods=[Mahalanobis, KNN(k=2)], splits=2,
    )  # fmt: skip
    found, expected = compare(given, jobs=jobs), compare(plan)
    for own, other in zip(found.results, expected.results, strict=True):
        assert own.entry.label == other.entry.label
        assert all(own.summarize(MEAN, metric) == other.summarize(MEAN, metric) for metric in METRICS)
    described = found.to_json()["stores"]
    assert described["id_train"] == "60 sequences" and described["ood.far"] == str(stores / "far")


def test_a_set_that_is_no_data_is_named(plan):
    with pytest.raises(InputError, match=r"^ood\.near: A 2-D array"):
        compare(replace(plan, ood={"near": np.ones((4, 6))}))


@pytest.fixture
def fits(monkeypatch):
    """The methods that were really fitted."""
    done = []
    for kind in (APOOD, KNN, Length, Mahalanobis):

        def fit(self, *arguments, original=kind._fit):
            done.append(self.name)
            original(self, *arguments)

        monkeypatch.setattr(kind, "_fit", fit)
    return done


def content(comparison):
    return json.loads(json.dumps(comparison.to_json(), allow_nan=False))


def test_figures_are_those_of_fits_by_hand(plan):
    found = compare(plan).results[1]
    values = {"auroc": [], "fpr95": [], "mean": []}
    for number in range(2):
        data = draw_splits(plan)[number]
        detector = KNN(k=2).fit(data.train)
        inside = detector.score_samples(data.test)
        outside = {name: detector.score_samples(source) for name, source in data.ood.items()}
        values["auroc"].append(100 * auroc(inside, outside["near"]).value)
        values["fpr95"].append(100 * fpr95(inside, outside["near"]).value)
        values["mean"].append(100 * fmean(auroc(inside, own).value for own in outside.values()))
    for dataset, metric, key in (("near", "auroc", "auroc"), ("near", "fpr95", "fpr95"), (MEAN, "auroc", "mean")):
        assert found.summarize(dataset, metric) == pytest.approx((fmean(values[key]), stdev(values[key])), abs=1e-3)


def test_everything_is_in_the_json(plan, stores):
    found = content(compare(replace(plan, id_validation=stores / "validation")))
    assert found["stores"]["ood.near"] == str(stores / "near") and found["splits"] == 2 and found["share"] == 0.8
    assert [method["name"] for method in found["methods"]] == ["mahalanobis", "knn, k=2"]
    for method in found["methods"]:
        assert list(method["results"]) == ["near", "far", MEAN]
        assert all(set(own) == set(METRICS) for own in method["results"].values())
        assert method["fit_seconds"] > 0 and method["score_seconds_per_1000"] > 0 and method["artefact_bytes"] > 100
        assert method["aux"] is False and method["splits"][1]["warnings"] == []
        rows = [row for split in method["splits"] for row in split["rows"]]
        assert [row["dataset"] for row in rows] == ["near", "far", MEAN] * 2
        assert (rows[0]["n_id"], rows[0]["n_ood"]) == (24, 16)


def test_the_accept_rate_is_that_of_the_test_sequences(plan, stores):
    plan = replace(plan, id_validation=stores / "validation", splits=1, share=1)
    found = compare(plan).results[0]
    data = draw_splits(plan)[0]
    detector = Mahalanobis().fit(data.train)
    threshold = conformal_threshold(detector.score_samples(data.validation))
    expected = 100 * np.mean(detector.score_samples(data.test) >= threshold)
    assert found.accepted == (pytest.approx(expected, abs=1e-3), None)
    assert compare(replace(plan, id_validation=None)).results[0].accepted is None


def test_a_single_split_has_no_deviation():
    assert Spread.from_values([3.0]) == (3.0, None) and Spread.from_values([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))


def test_nothing_is_done_twice(plan, fits, tmp_path, stores):
    first = compare(plan, cache=tmp_path)
    assert fits == ["mahalanobis", "knn"] * 2
    fits.clear()
    assert content(compare(plan, cache=tmp_path)) == content(first)
    assert fits == []

    more = replace(plan, ood={**plan.ood, "aux": stores / "aux"}, methods=[*plan.methods, Entry("length")], splits=3)
    again = compare(more, cache=tmp_path)
    assert sorted(fits) == ["knn", "length", "length", "length", "mahalanobis"]
    for before, after in zip(first.results, again.results, strict=False):
        for split, later in zip(before.runs, after.runs, strict=False):
            assert split.rows[:2] == later.rows[:2]


def test_whole_sets_are_fitted_once_where_no_seed_makes_a_difference(plan, fits):
    small = Entry("ap-ood", {"steps": 2, "heads": 2})
    found = compare(replace(plan, share=1, methods=[Entry("knn"), small]))
    assert sorted(fits) == ["ap-ood", "ap-ood", "knn"]
    assert found.results[0].summarize("near", "auroc").std is None
    assert [len(result.runs) for result in found.results] == [1, 2]


def test_methods_learn_from_aux_only_when_asked_to(plan, stores, monkeypatch):
    learnt_from = []
    original = APOOD._fit

    def fit(self, source, aux, checkpoint):
        learnt_from.append(aux and len(aux))
        original(self, source, aux, checkpoint)

    monkeypatch.setattr(APOOD, "_fit", fit)
    alone = Entry("ap-ood", {"steps": 2, "heads": 2})
    found = compare(replace(plan, aux=stores / "aux", methods=[alone, replace(alone, aux="all")], splits=1))
    assert learnt_from == [None, 10]
    assert [method["aux"] for method in found.to_json()["methods"]] == [False, True]


def test_an_interrupted_comparison_goes_on(plan, fits, tmp_path, monkeypatch):
    whole = compare(plan)
    fits.clear()
    interrupted = KNN.score_samples

    def interrupt(self, tokens):
        if fits == ["mahalanobis", "knn", "mahalanobis", "knn"]:
            raise KeyboardInterrupt
        return interrupted(self, tokens)

    monkeypatch.setattr(KNN, "score_samples", interrupt)
    with pytest.raises(KeyboardInterrupt):
        compare(plan, cache=tmp_path)
    fits.clear()
    again = compare(plan, cache=tmp_path)
    assert fits == []  # the fit was kept, though not yet scored with
    assert [c.runs[1].rows for c in again.results] == [c.runs[1].rows for c in whole.results]


def test_processes_give_the_same_results(plan, tmp_path):
    failed, *together = compare(replace(plan, methods=[TOO_MANY, *plan.methods]), cache=tmp_path, jobs=2).results
    assert failed.failures == {1: REASON, 2: REASON}
    for own, other in zip(together, compare(plan).results, strict=True):
        for run, alike in zip(own.runs, other.runs, strict=True):
            for row, same in zip(run.rows, alike.rows, strict=True):
                assert row == pytest.approx(same, abs=1e-3)


def test_bad_plans_are_refused_before_any_work(plan, fits):
    with pytest.raises(InputError, match="There is no method 'svm'"):
        compare(replace(plan, methods=[*plan.methods, Entry("svm")]))
    with pytest.raises(InputError, match="jobs must be at least 1"):
        compare(plan, jobs=0)
    assert fits == []


def test_a_method_that_cannot_be_fitted_stops_no_other(plan):
    found = compare(replace(plan, methods=[TOO_MANY, *plan.methods]))
    failed, *others = found.results
    assert failed.failures == {1: REASON, 2: REASON} and failed.runs == []
    assert [(len(other.runs), other.failures) for other in others] == [(2, {})] * 2
    written = content(found)["methods"]
    assert written[0]["failures"] == [f"split {number}: {REASON}" for number in (1, 2)] and "results" not in written[0]
    assert written[1]["failures"] == [] and "results" in written[1]


def test_an_unexpected_failure_of_one_split_leaves_the_others(plan, monkeypatch):
    fit = KNN._fit

    def fit_once(*_):
        monkeypatch.setattr(KNN, "_fit", fit)
        raise RuntimeError("a surprise")

    monkeypatch.setattr(KNN, "_fit", fit_once)
    _, found = compare(plan).results
    assert found.failures == {1: "RuntimeError: a surprise"} and [run.seed for run in found.runs] == [1]


def test_seeds_are_results(plan):
    small = Entry("ap-ood", {"steps": 2, "heads": 2, "seed": 10})
    found = content(compare(replace(plan, seed=3, methods=[*plan.methods, small])))["methods"]
    seeds = [[(split["seed"], split["training_seed"]) for split in method["splits"]] for method in found]
    assert seeds == [[(3, None), (4, None)], [(3, None), (4, None)], [(3, 13), (4, 14)]]


def test_parameters_may_be_infinite(tmp_path):
    generator = torch.Generator().manual_seed(0)
    for name, count in (("train", 30), ("test", 20), ("other", 10)):
        samples = torch.stack([-5 * torch.rand(4 * count, generator=generator), torch.full((4 * count,), 3.0)], 1)
        batch = TokenBatch.from_lengths(torch.empty(0, 6), [0] * count)
        with TokenStoreWriter(tmp_path / name, dim=6) as writer:
            writer.append(batch.with_channels(sample_logprobs=Ragged.from_lengths(samples, [4] * count)))
    plan = ComparisonPlan(
        ood={"other": tmp_path / "other"}, id_train=tmp_path / "train", id_test=tmp_path / "test",
        methods=[Entry("entropy", {"temperature": math.inf})], splits=1,
    )  # fmt: skip
    (found,) = content(compare(plan))["methods"]
    assert found["parameters"] == {"temperature": {"float": "inf"}} and found["failures"] == []


def test_warnings_of_fits_are_results(plan, tmp_path, monkeypatch):
    fit = Mahalanobis._fit

    def fit_with_a_warning(self, *arguments):
        warnings.warn("did not converge", FitWarning, stacklevel=1)
        fit(self, *arguments)

    monkeypatch.setattr(Mahalanobis, "_fit", fit_with_a_warning)
    for _ in range(2):
        first, second = compare(plan, cache=tmp_path).results
        assert [split.warnings for split in first.runs] == [["did not converge"]] * 2
        assert [split.warnings for split in second.runs] == [[], []]
