"""The nearest neighbour in the Mahalanobis metric."""

import numpy as np
import pytest
import torch
from builders import correlated_sequences
from sklearn.neighbors import NearestNeighbors

from apood.detectors.knn import KNN, MahalanobisKNN
from apood.support.errors import InputError


def means(batch):
    return np.stack([z.double().numpy().mean(0) for z in batch])


@pytest.mark.parametrize("k", [1, 3])
def test_it_is_scikit_learns_neighbour_in_the_mahalanobis_metric(train, test_set, k):
    x = means(train)
    covariance = np.cov(x.T, bias=True)
    for share in (0.0, 0.1, 1.0):
        shrunk = (1 - share) * covariance + share * covariance.trace() / len(covariance) * np.eye(len(covariance))
        metric = {"VI": np.linalg.inv(shrunk)}
        search = NearestNeighbors(n_neighbors=k, metric="mahalanobis", metric_params=metric, algorithm="brute")
        distances, _ = search.fit(x).kneighbors(means(test_set))
        for average, expected in ((False, distances[:, -1]), (True, distances.mean(1))):
            detector = MahalanobisKNN(k=k, normalize="none", average=average, shrinkage=share).fit(train)
            np.testing.assert_allclose(detector.score_samples(test_set), -expected, rtol=1e-6)
    assert MahalanobisKNN().shrinkage == 0.1


def test_linear_maps_change_nothing(train, test_set):
    """Stretching one direction changes the scores of plain neighbours only."""
    stretch = torch.eye(train.dim)
    stretch[0, 0] = 50.0
    for kind, same in ((MahalanobisKNN(normalize="none", shrinkage=0.0), True), (KNN(normalize="none"), False)):
        expected = kind.fit(train).score_samples(test_set)
        moved = [[z @ stretch for z in batch] for batch in (train, test_set)]
        found = kind.fit(moved[0]).score_samples(moved[1])
        assert np.allclose(found, expected, rtol=1e-3) is same


def test_a_direction_of_low_variance_counts():
    """A step that is small for plain neighbours is large in a direction in which ID sequences do not vary."""
    flat = [z * torch.tensor([1.0] * 7 + [1e-3]) for z in correlated_sequences(200, 8, lengths=(4, 8))]
    inside, outside = flat[:20], [z + torch.tensor([0.0] * 7 + [0.05]) for z in flat[:20]]
    exact = MahalanobisKNN(normalize="none", shrinkage=0.0)
    for detector, sees in ((exact, True), (KNN(k=1, normalize="none"), False)):
        detector.fit(flat[20:])
        gap = detector.score_samples(inside) - detector.score_samples(outside)
        assert bool(np.median(gap) > 1) is sees


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"shrinkage": -0.1}, "shrinkage must be a finite number"),
        ({"shrinkage": 1.5}, "shrinkage must be"),
        ({"shrinkage": float("nan")}, "shrinkage must be"),
        ({"average": "yes"}, "average must be True or False, got 'yes'"),
        ({"k": 0}, "k must be at least 1"),
    ],
)
def test_settings_that_are_none_are_refused(train, wrong, sentence):
    with pytest.raises(InputError, match=f"^{sentence}"):
        MahalanobisKNN(**wrong).fit(train)


def test_too_few_sequences(train):
    for k, count, least in ((1, 1, 2), (5, 4, 5)):
        with pytest.raises(
            InputError, match=rf"^A covariance and {k} neighbours need {least} ID sequences, got {count}"
        ):
            MahalanobisKNN(k=k).fit(train[:count])
