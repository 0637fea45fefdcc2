"""The detectors on mean-pooled tokens, against scikit-learn and numpy."""

import numpy as np
import pytest
import torch
from builders import correlated_sequences, random_tokens
from sklearn.covariance import EmpiricalCovariance
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from apood.detectors.knn import KNN, MahalanobisKNN
from apood.detectors.length import Length
from apood.detectors.mahalanobis import Mahalanobis
from apood.detectors.shared import mean_pooling
from apood.detectors.shared.mean_pooling import compute_moments, inverse_root
from apood.support.errors import FitWarning, InputError
from apood.tokens.batch import TokenBatch

DIM = 8
NORMALIZATIONS = ["none", "tokens", "pooled"]


def means(batch, how):
    """Return the mean-pooled sequences by numpy."""
    sequences = [z.double().numpy() for z in batch]
    if how == "tokens":
        sequences = [normalize(z) for z in sequences]
    pooled = np.stack([z.mean(0) for z in sequences])
    return normalize(pooled) if how == "pooled" else pooled


# Moments.


@pytest.mark.parametrize("how", NORMALIZATIONS)
@pytest.mark.parametrize("budget", [1, 17, 10**6])
def test_streaming_moments_equal_those_of_numpy(train, monkeypatch, how, budget):
    monkeypatch.setattr(mean_pooling, "token_budget", lambda _: budget)
    found = compute_moments(train, how)
    pooled = means(train, how)
    assert found.sequences == len(train) and found.covariance.dtype == torch.float64
    np.testing.assert_allclose(found.mean, pooled.mean(0), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found.covariance, np.cov(pooled.T, bias=True), rtol=1e-5, atol=1e-7)


def test_streaming_moments_do_not_cancel(monkeypatch):
    monkeypatch.setattr(mean_pooling, "token_budget", lambda _: 17)
    far = correlated_sequences(200, DIM, dtype=torch.float64)
    far.values.add_(1e6)
    expected = np.cov(means(far, "none").T, bias=True)
    np.testing.assert_allclose(compute_moments(far, "none").covariance, expected, rtol=1e-8, atol=1e-8)


def test_the_inverse_root_raises_only_what_is_below_the_floor():
    values = torch.tensor([1e-9, 0.5, 2.0], dtype=torch.float64)
    vectors = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).Q
    covariance = vectors @ torch.diag(values) @ vectors.T
    root = inverse_root(covariance, 0.1)
    raised = torch.maximum(values, 0.1 * values.mean())
    torch.testing.assert_close(root.T @ root, vectors @ torch.diag(1 / raised) @ vectors.T)


def test_no_spread_is_refused(train):
    same = TokenBatch.from_padded(torch.ones(5, 2, DIM))
    with pytest.raises(InputError, match="same vector"):
        Mahalanobis().fit(same)
    with pytest.raises(InputError, match="at least 2 ID sequences, got 1"):
        Mahalanobis().fit(train[:1])


@pytest.mark.parametrize("detector", [Mahalanobis, KNN])
def test_an_unknown_normalization_is_refused(detector, train):
    with pytest.raises(InputError, match=r"normalize must be one of .*'both'"):
        detector(normalize="both").fit(train)


# Mahalanobis.


@pytest.mark.parametrize("how", NORMALIZATIONS)
def test_mahalanobis_equals_scikit_learn(train, test_set, how):
    train, test = train.to(dtype=torch.float64), test_set.to(dtype=torch.float64)
    reference = EmpiricalCovariance().fit(means(train, how))
    scores = Mahalanobis(normalize=how, eigenvalue_floor=1e-12).fit(train).score_samples(test)
    np.testing.assert_allclose(-scores, reference.mahalanobis(means(test, how)), rtol=1e-6)


def test_a_well_conditioned_covariance_is_left_as_it_is(train, test_set):
    scores = [Mahalanobis(eigenvalue_floor=floor).fit(train).score_samples(test_set) for floor in (1e-4, 1e-12)]
    assert np.array_equal(*scores)


@pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")
@pytest.mark.parametrize("kind", ["hyperplane", "fewer sequences than dimensions"])
def test_a_singular_covariance_is_usable(train, test_set, kind):
    if kind == "hyperplane":  # as after a layer norm
        train, test_set = (TokenBatch(b.values - b.values.mean(1, keepdim=True), b.offsets) for b in (train, test_set))
    else:
        train = train[:5]
    scores = Mahalanobis().fit(train).score_samples(test_set)
    assert np.isfinite(scores).all()
    assert scores[:12].mean() > scores[12:].mean()
    # rounding in the missing directions decides nothing
    nudged = TokenBatch(test_set.values + 1e-6, test_set.offsets)
    np.testing.assert_allclose(Mahalanobis().fit(train).score_samples(nudged), scores, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("detector", [Mahalanobis, MahalanobisKNN])
def test_fewer_sequences_than_dimensions_are_reported(detector, train):
    sentence = r"^There are fewer ID sequences \(7\) than token dimensions \(8\), too few to know .*, or use knn"
    with pytest.warns(FitWarning, match=sentence) as caught:
        detector().fit(train[:7])
    assert [warning.filename for warning in caught] == [__file__], "it points at the call of fit"
    detector().fit(train[:8])  # a warning would be an error here


@pytest.mark.parametrize("floor", [0.0, 1.5])
def test_a_bad_floor_is_refused(train, floor):
    with pytest.raises(InputError, match=rf"eigenvalue_floor must .*> 0 and <= 1, got {floor}"):
        Mahalanobis(eigenvalue_floor=floor).fit(train)


# Nearest neighbours.


@pytest.mark.parametrize("how", NORMALIZATIONS)
@pytest.mark.parametrize("k", [1, 5, 80])
def test_knn_equals_scikit_learn(train, test_set, how, k):
    reference = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(means(train, how))
    expected = reference.kneighbors(means(test_set, how))[0][:, -1]
    scores = KNN(k=k, normalize=how).fit(train).score_samples(test_set)
    np.testing.assert_allclose(-scores, expected, rtol=1e-6)


def test_knn_is_exact_far_from_the_origin():
    """If distances are small compared with the vectors, a product of vectors says nothing about their distance."""
    train = correlated_sequences(300, DIM, dtype=torch.float64, lengths=(1, 1))
    test = correlated_sequences(20, DIM, seed=1, dtype=torch.float64, lengths=(1, 1))
    near = KNN(k=3, normalize="none").fit(train).score_samples(test)
    for batch in (train, test):
        batch.values.add_(1e4)
    far = KNN(k=3, normalize="none").fit(train).score_samples(test)
    np.testing.assert_allclose(far, near, rtol=1e-6)


def test_knn_in_chunks_is_the_same(train, test_set, monkeypatch):
    detector = KNN().fit(train)
    expected = detector.score_samples(test_set)
    monkeypatch.setattr("apood.detectors.knn._CHUNK", 3 * len(train))
    np.testing.assert_allclose(detector.score_samples(test_set), expected, rtol=1e-7)


def test_a_training_sequence_is_its_own_nearest_neighbour(train):
    detector = KNN(k=1).fit(train)
    assert (detector.score_samples(train) == 0).all()
    twice = KNN(k=2).fit(TokenBatch.concatenate([train, train]))
    assert (twice.score_samples(train) == 0).all()


def near_duplicates(count, seed, spread):
    """Return one-token sequences in two tight clusters, in which distances are small compared with the vectors."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.ones(count, DIM) * torch.tensor([1.0, -1.0]).repeat(count // 2)[:, None]
    return TokenBatch.from_padded((centres + spread * torch.randn(count, DIM, generator=generator))[:, None])


@pytest.mark.parametrize("k", [1, 300])
def test_knn_tells_near_duplicates_apart(k):
    detector = KNN(k=k, normalize="none").fit(near_duplicates(1000, 0, 2e-4))
    test = near_duplicates(40, 1, 2e-4)
    bank, asked = detector.bank_.double(), (test.values.double() - detector.centre_).float().double()
    # a tree computes differences, brute force would compute products
    expected = NearestNeighbors(n_neighbors=k, algorithm="kd_tree").fit(bank).kneighbors(asked)[0][:, -1]
    scores = detector.score_samples(test)
    np.testing.assert_allclose(-scores, expected, rtol=1e-6)
    np.testing.assert_allclose(
        np.concatenate([detector.score_samples(test[i : i + 1]) for i in range(40)]), scores, 1e-6
    )


def test_exact_duplicates_have_no_distance():
    train = near_duplicates(1000, 0, 0.0)
    detector = KNN(k=500, normalize="none").fit(train)
    length = float(torch.linalg.vector_norm(detector.bank_, dim=1).max())
    assert length > 1
    np.testing.assert_allclose(detector.score_samples(train), 0, atol=1e-6 * length)


class LargestTensor(TorchDispatchMode):
    """A mode that records the size of the largest result of any operation."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.numbers = max([self.numbers, *sizes])
        return result


@pytest.mark.parametrize("k", [1, 400])
def test_the_temporaries_of_knn_stay_small(monkeypatch, k):
    train, test = near_duplicates(400, 0, 0.1), near_duplicates(64, 1, 0.1)
    detector = KNN(k=k).fit(train)
    expected = detector.score_samples(test)
    chunk = 64 * DIM  # as many numbers as the test vectors have
    monkeypatch.setattr("apood.detectors.knn._CHUNK", chunk)
    with LargestTensor() as largest:
        scores = detector._score(test)
    np.testing.assert_allclose(scores, expected, rtol=1e-7)
    assert chunk <= largest.numbers <= 2 * chunk


def test_knn_refuses_impossible_neighbours(train):
    with pytest.raises(InputError, match=r"^k=81 neighbours need at least as many ID sequences, got 80\.$"):
        KNN(k=81).fit(train)
    for k, rule in (
        (0, "at least 1"),
        (-3, "at least 1"),
        (2.5, "a whole number"),
        ("5", "a whole number"),
        (True, "a whole number"),
    ):
        with pytest.raises(InputError, match=rf"^k must be {rule}, got {k!r}\.$"):
            KNN(k=k).fit(train)


# Length.


def test_length_is_the_distance_of_logarithms():
    train, test = random_tokens([1, 4, 16], 3), random_tokens([4, 1, 8, 64], 3)
    scores = Length().fit(train).score_samples(test)
    np.testing.assert_allclose(scores, [0, -np.log(4), -np.log(2), -np.log(16)], atol=1e-15)
