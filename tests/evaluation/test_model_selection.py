"""A search tries what it should, judges by what no fit has seen, survives what fails, and says what it is worth."""

import copy
import json
import math

import numpy as np
import pytest
import torch
from builders import correlated_sequences

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.contract.held_out import HeldOutFit
from apood.detectors.contract.registry import METHODS, detector_class
from apood.detectors.entropy import Entropy
from apood.detectors.knn import KNN
from apood.detectors.length import Length
from apood.detectors.mahalanobis import Mahalanobis
from apood.evaluation.metrics import auroc
from apood.evaluation.selection import HELD_OUT_PROMISE, select
from apood.support.errors import InputError
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.documents import WINDOW
from apood.tokens.source import split
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter

DIM = 8
TRAIN = correlated_sequences(80, DIM)
VALIDATION = correlated_sequences(40, DIM, seed=1)
AUX = correlated_sequences(40, DIM, seed=2, shift=1.5)
QUICK = {"steps": 15, "device": "cpu"}


def judged(detector, aux=AUX):
    return auroc(detector.score_samples(VALIDATION), detector.score_samples(aux))


# what is tried


def test_the_grid_of_ap_ood_is_that_of_the_paper():
    space = APOOD().hyperparameter_space(384, supervised=False)
    assert len(space) == 20 and all(s["heads"] * s["queries"] == 384 for s in space)
    assert {s["queries"] for s in space} == {1, 4, 16, 64}
    assert {s["beta"] for s in space} == {1 / math.sqrt(384), 0.25, 0.5, 1, 2}
    supervised = APOOD().hyperparameter_space(384, supervised=True)
    assert len(supervised) == 60 and {s["aux_weight"] for s in supervised} == {0.1, 1, 10}


@pytest.mark.parametrize(("dim", "queries", "betas"), [(16, {1, 4, 16}, 4), (7, {1}, 5), (100, {1, 4}, 5)])
def test_only_queries_that_divide_the_dimension_are_tried_and_nothing_twice(dim, queries, betas):
    space = APOOD().hyperparameter_space(dim, supervised=False)
    assert {s["queries"] for s in space} == queries
    assert len(space) == len(queries) * betas == len({tuple(s.items()) for s in space})


@pytest.mark.parametrize("supervised", [False, True])
def test_every_method_allows_the_settings_of_its_grid(supervised):
    for method in METHODS:
        space = detector_class(method)().hyperparameter_space(64, supervised=supervised)
        assert space, method
        for settings in space:
            detector_class(method)(**settings).check_parameters()


def test_the_closed_forms_try_neighbours_and_normalisations():
    assert len(KNN().hyperparameter_space(DIM, supervised=False)) == 12
    found = select(Mahalanobis(), TRAIN, VALIDATION, AUX)
    assert [set(point.settings) for point in found.points] == [{"normalize"}] * 3
    assert [point.settings["normalize"] for point in found.points if point.given] == ["none"]


def test_settings_as_given_are_tried_beside_the_grid_and_only_once():
    beside = select(KNN(k=3), TRAIN, VALIDATION, AUX, grid={"k": [1, 5, 5]})
    assert sorted(point.settings.get("k", 3) for point in beside.points) == [1, 3, 5]
    assert [point.settings for point in beside.points if point.given] == [{}]
    inside = select(KNN(k=5), TRAIN, VALIDATION, AUX, grid={"k": [1, 5]})
    assert [point.settings for point in inside.points if point.given] == [{"k": 5}] and len(inside.points) == 2


# how it is judged


def test_points_are_ranked_by_their_auroc_and_the_best_is_ready_to_use():
    found = select(KNN(), TRAIN, VALIDATION, AUX, grid={"k": [1, 40], "normalize": ["pooled", "none"]})
    for point in found.points:
        assert point.auroc == judged(KNN(**point.settings).fit(TRAIN))
    values = [point.auroc.value for point in found.points]
    assert values == sorted(values, reverse=True) and values[0] > values[-1]
    assert found.best is found.points[0]
    assert judged(found.detector) == found.best.auroc
    assert f"{len(VALIDATION)} ID against {len(AUX)} AUX" in found.promise


def test_among_equals_the_settings_as_given_win():
    twins = TokenBatch.concatenate([TRAIN, TRAIN])  # so that the first and the second neighbour are equally near
    found = select(KNN(k=2), twins, VALIDATION, AUX, grid={"k": [1, 2]})
    assert [point.auroc for point in found.points] == [found.best.auroc] * 2 and found.best.settings == {"k": 2}


def test_without_supervision_all_aux_are_judged_by_and_none_learnt_from():
    found = select(APOOD(**QUICK), TRAIN, VALIDATION, AUX, grid={"beta": [0.0, 1.0]})
    assert found.sequences == {"train": 80, "validation": 40, "aux_train": 0, "aux_validation": 40}
    assert found.best.auroc == judged(APOOD(**QUICK, **found.best.settings).fit(TRAIN))


def test_supervision_learns_from_the_aux_that_are_not_judged_by():
    found = select(APOOD(**QUICK), TRAIN, None, AUX, supervised=True, grid={"aux_weight": [10.0]}, aux_share=0.5)
    assert found.sequences == {"train": 64, "validation": 16, "aux_train": 20, "aux_validation": 20}
    (train, validation), (learnt, outliers) = split(TRAIN, 0.2, 0), split(AUX, 0.5, 0)
    for point in found.points:
        detector = APOOD(**QUICK, **point.settings).fit(train, aux=learnt)
        assert point.auroc == auroc(detector.score_samples(validation), detector.score_samples(outliers))


def test_seeds_are_averaged_over():
    found = select(APOOD(**QUICK, seed=3), TRAIN, VALIDATION, AUX, grid={"queries": [1]}, seeds=2)
    for point in found.points:
        expected = [judged(APOOD(**QUICK, **point.settings, seed=seed).fit(TRAIN)).value for seed in (3, 4)]
        assert list(point.per_seed) == expected and point.auroc.value == pytest.approx(np.mean(expected))
        assert point.auroc.low <= point.auroc.value <= point.auroc.high
    assert found.detector.seed == 3


# without outliers


@pytest.mark.parametrize("score", ["sum", "min"])
def test_the_held_out_loss_is_the_one_of_the_paper(score):
    found = select(APOOD(**QUICK, score=score), TRAIN, VALIDATION, grid={"beta": [0.5], "queries": [1], "heads": [4]})
    point = next(point for point in found.points if not point.given)
    detector = APOOD(**QUICK, score=score, **point.settings).fit(TRAIN)
    summed = copy.copy(detector)
    summed.score_ = "sum"
    distances = summed.explain(VALIDATION).totals  # Σ_j d² of each sequence
    assert point.held_out.distance == pytest.approx(float(distances.mean()) / 4, rel=1e-4)
    assert point.held_out.loss == pytest.approx(float(distances.mean()) - float(detector.log_norms_.sum()), rel=1e-4)
    assert point.held_out.training_distance == detector.mean_distance_
    assert point.auroc is None and not point.disaster


def test_without_outliers_the_settings_as_given_are_kept():
    found = select(APOOD(**QUICK), TRAIN, VALIDATION, grid={"beta": [0.1, 2.0]})
    ratios = [point.held_out.ratio for point in found.points]
    assert ratios == sorted(ratios)
    assert found.best.given and found.best.settings == {} and found.detector.beta is None
    assert found.promise == HELD_OUT_PROMISE and "changes sign" in found.to_json()["promise"]


def test_a_disaster_is_not_kept():
    far = TokenBatch(50 * TRAIN.values, TRAIN.offsets)  # saturates the attention of the published recipe at once
    found = select(APOOD(**QUICK, recipe="paper"), far, grid={"recipe": ["robust", "paper"]})
    states = {point.settings["recipe"]: point.disaster for point in found.points}
    assert states == {"robust": False, "paper": True}
    assert found.best.settings == {"recipe": "robust"} and found.detector.recipe == "robust"
    alone = select(APOOD(**QUICK, recipe="paper"), far, grid={"recipe": ["paper"]})
    assert alone.best is None and alone.detector is None and alone.to_json()["best"] is None


@pytest.mark.parametrize(
    ("distance", "training_distance", "disaster"),
    [(3.99, 1.0, False), (4.0, 1.0, True), (3.99, 3.99, False), (4.0, 4.0, True), (float("nan"), 1.0, True)],
)
def test_a_disaster_begins_at_a_ratio_or_a_training_distance_of_4(distance, training_distance, disaster):
    assert HeldOutFit(0.0, distance, training_distance).disaster is disaster


def test_infinite_settings_are_written():
    generator = torch.Generator().manual_seed(0)

    def sampled(count, scale):
        samples = torch.stack([-scale * torch.rand(4 * count, generator=generator), torch.full((4 * count,), 3.0)], 1)
        return TokenBatch.without_tokens(sample_logprobs=Ragged.from_lengths(samples, [4] * count))

    data = (sampled(count, scale) for count, scale in ((30, 5), (20, 5), (10, 9)))
    found = select(Entropy(), *data, grid={"temperature": [math.inf]}).to_json()
    settings = [point["settings"] for point in json.loads(json.dumps(found, allow_nan=False))["points"]]
    assert {} in settings and {"temperature": {"float": "inf"}} in settings


# what goes wrong


def test_a_setting_that_cannot_be_fitted_is_reported_and_stops_nothing():
    found = select(KNN(), TRAIN, VALIDATION, AUX, grid={"k": [500, 1]})
    assert found.points[-1].settings == {"k": 500} and found.points[-1].auroc is None
    assert found.points[-1].failure == "k=500 neighbours need at least as many ID sequences, got 80."
    assert found.best.failure is None and len(found.points) == 3


def test_a_training_that_diverges_has_failed():
    found = select(APOOD(**QUICK), TRAIN, VALIDATION, AUX, grid={"learning_rate": [1e30]})
    assert "no longer finite" in found.points[-1].failure and found.best.given


def test_when_everything_fails_the_first_reason_is_given():
    with pytest.raises(InputError, match=r"None of the 2 settings could be .*k=500 neighbours need"):
        select(KNN(k=500), TRAIN, VALIDATION, AUX, grid={"k": [600]})


class ListsValues(Length):
    def hyperparameter_space(self, dim, *, supervised):  # noqa: ARG002
        return [{"seed": [1, 2]}]


SHORT = TRAIN.select(slice(3))
REFUSED = [
    ("The grid is empty", KNN(), {"grid": {}}),
    ("no value for k", KNN(), {"grid": {"k": []}}),
    ("knn has no parameter 'beta'; there are k, normalize", KNN(), {"grid": {"beta": [1]}}),
    ("k must be at least 1, got 0", KNN(), {"grid": {"k": [1, 0]}}),
    ("length has no settings that are usually searched", Length(), {}),
    ("must return one value of seed in each of its settings.* got \\[1, 2\\]", ListsValues(), {}),
    ("knn learns from in-distribution data alone", KNN(), {"supervised": True}),
    ("ap-ood has to be given some", APOOD(), {"supervised": True, "aux": None}),
    ("Settings of knn can only be chosen with AUX", KNN(), {"aux": None}),
    ("3 AUX sequences are too few to split", APOOD(), {"supervised": True, "aux": SHORT, "aux_share": 0.1}),
    ("3 ID sequences are too few", KNN(), {"train": SHORT, "validation": None, "validation_share": 0.01}),
    ("aux_share must be a finite number > 0 and < 1, got 1", APOOD(), {"supervised": True, "aux_share": 1}),
    ("validation_share must be a finite number", KNN(), {"validation": None, "validation_share": "half"}),
    ("The AUX tokens have D=4, the ID tokens have D=8", KNN(), {"aux": correlated_sequences(5, 4)}),
    ("The ID validation sequences are the ID sequences", KNN(), {"validation": TRAIN}),
    ("There are no AUX sequences", KNN(), {"aux": AUX.select(slice(0))}),
    ("Token 0 of sequence 0 in the ID validation data is NaN", KNN(), {"validation": [np.full((2, DIM), np.nan)]}),
    ("knn has no seed", KNN(), {"seeds": 2}),
    ("seeds must be at least 1, got 0", KNN(), {"seeds": 0}),
    ("leaves nothing to average over", APOOD(), {"seeds": 2, "grid": {"seed": [0, 1]}}),
    ("jobs must be at least 1, got 0", KNN(), {"jobs": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "detector", "changes"), REFUSED)
def test_what_cannot_work_is_refused_before_any_work(sentence, detector, changes, tmp_path):
    usual = {"train": TRAIN, "validation": VALIDATION, "aux": AUX, "cache": tmp_path / "cache"}
    with pytest.raises(InputError, match=sentence):
        select(detector, **usual | changes)
    assert not (tmp_path / "cache").exists()


# the cache


def stored(folder, batch):
    with TokenStoreWriter(folder, dim=DIM) as writer:
        writer.append(batch)
    return TokenStore(folder)


def test_nothing_is_done_twice(tmp_path):
    train, validation, aux = (
        stored(tmp_path / name, data) for name, data in (("train", TRAIN), ("held-out", VALIDATION), ("aux", AUX))
    )
    grid = {"k": [1, 40], "normalize": ["pooled", "tokens"]}
    cache = tmp_path / "cache"
    first = select(KNN(), train, validation, aux, grid=grid, cache=cache)
    assert len(list(cache.iterdir())) == 5
    assert select(KNN(), train, validation, aux, grid=grid, cache=cache).points == first.points  # down to the seconds
    more = select(KNN(), train, validation, aux, grid=grid | {"k": [1, 2, 40]}, cache=cache)
    assert len(list(cache.iterdir())) == 7
    seconds = {str(point.settings): point.fit_seconds for point in more.points}
    assert all(seconds[str(point.settings)] == point.fit_seconds for point in first.points)


def test_windows_of_a_text_are_judged_and_counted_as_one():
    windows = Ragged.from_lengths(torch.arange(40, dtype=torch.int32) % 2, [1] * 40)
    train, validation, aux = (
        correlated_sequences(40, DIM, seed=seed, shift=shift).with_channels(**{WINDOW: windows})
        for seed, shift in ((3, 0.0), (4, 0.0), (5, 1.5))
    )
    found = select(KNN(), train, validation, aux, grid={"k": [1]})
    assert found.sequences == {"train": 20, "validation": 20, "aux_train": 0, "aux_validation": 20}
    assert found.promise.startswith("Chosen by AUROC of 20 ID against 20 AUX")
