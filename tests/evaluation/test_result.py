import json
import math
from typing import get_type_hints

import numpy as np
import pytest

from apood.evaluation.metrics import aupr_id, aupr_ood, auroc, fpr95
from apood.evaluation.result import MEAN, ResultRow, compute_mean_row, compute_rows
from apood.support.errors import InputError


@pytest.fixture
def scores():
    generator = np.random.default_rng(0)
    return generator.normal(1, 1, 60), {"near": generator.normal(0.5, 1, 40), "far": generator.normal(-2, 1, 30)}


def test_a_row_holds_every_metric_in_percent(scores):
    id_scores, ood_scores = scores
    rows = compute_rows("knn", id_scores, ood_scores)
    assert [(row["method"], row["dataset"], row["n_id"], row["n_ood"]) for row in rows] == [
        ("knn", "near", 60, 40),
        ("knn", "far", 60, 30),
    ]
    for row in rows:
        assert list(row) == list(get_type_hints(ResultRow))
        for metric in (auroc, fpr95, aupr_id, aupr_ood):
            shown = [row[metric.__name__ + end] for end in ("", "_low", "_high")]
            assert shown == pytest.approx([100 * x for x in metric(id_scores, ood_scores[row["dataset"]])], abs=1e-4)


def test_rows_survive_json(scores):
    rows = compute_rows("knn", *scores)
    rows.append(compute_mean_row(rows))
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows


def test_the_mean_counts_every_dataset_alike(scores):
    rows = compute_rows("knn", *scores)
    mean = compute_mean_row(rows)
    assert mean["dataset"] == MEAN
    assert mean["auroc"] == pytest.approx((rows[0]["auroc"] + rows[1]["auroc"]) / 2, abs=1e-4)
    assert mean["aupr_ood"] == pytest.approx((rows[0]["aupr_ood"] + rows[1]["aupr_ood"]) / 2, abs=1e-4)
    assert (mean["n_id"], mean["n_ood"]) == (60, 70)
    assert mean["fpr95_low"] is None
    assert mean["auroc_high"] is None
    assert list(mean) == list(rows[0])


def test_a_mean_is_of_one_method(scores):
    with pytest.raises(InputError, match="one method, got 2: knn, mahalanobis"):
        compute_mean_row(compute_rows("mahalanobis", *scores) + compute_rows("knn", *scores))
    with pytest.raises(InputError, match="one method, got 0: none"):
        compute_mean_row([])


def test_messages_name_the_method_and_the_dataset():
    with pytest.raises(InputError, match="The far scores of knn hold 1 NaN of 1, the first at index 0"):
        compute_rows("knn", [1.0], {"near": [0.0], "far": [math.nan]})
    with pytest.raises(InputError, match="The ID scores of knn hold 1 NaN"):
        compute_rows("knn", [math.nan], {"near": [0.0]})
    with pytest.raises(InputError, match="cannot be called 'mean'"):
        compute_rows("knn", [1.0], {"mean": [0.0]})
