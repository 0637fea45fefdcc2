"""β = 0, M = D, T = 1: attention pooling represents the Mahalanobis distance (paper, appendices B.2 and B.4)."""

import pytest
import torch
from builders import correlated_sequences
from hypothesis import given
from hypothesis import strategies as st

from apood.detectors.ap_ood.training import compute_regularizer, squared_distances
from apood.detectors.mahalanobis import Mahalanobis
from apood.detectors.shared.mean_pooling import compute_moments, inverse_root
from apood.pooling import attention_pool, compute_prototype, mean_pool

DIM = 6


def sequences(seed, lengths):
    return correlated_sequences(80, DIM, seed=seed, lengths=lengths, dtype=torch.float64)


def rotation(dim, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64)).Q


def as_heads(rows):
    """One head of one query for each row."""
    return rows[:, None, :]


@pytest.fixture
def equal_lengths():
    return sequences(0, (7, 7)), sequences(1, (7, 7))


@pytest.fixture
def ragged():
    return sequences(0, (1, 20)), sequences(1, (1, 20))


@pytest.mark.parametrize("seed", [None, 3, 4], ids=["eigenvectors", "rotation", "another rotation"])
def test_equal_lengths_with_the_papers_prototype(equal_lengths, seed):
    train, test = equal_lengths
    detector = Mahalanobis().fit(train)
    root = detector.whitening_ if seed is None else rotation(DIM, seed) @ detector.whitening_
    heads = as_heads(root)
    distances = squared_distances(
        attention_pool(test, heads, 0.0), compute_prototype(attention_pool(train, heads, 0.0))
    )
    expected = -torch.from_numpy(detector.score_samples(test))
    torch.testing.assert_close(distances.sum(1), expected, rtol=1e-6, atol=0)


def test_ragged_lengths_need_the_plain_mean_as_prototype(ragged):
    train, test = ragged
    detector = Mahalanobis().fit(train)
    heads = as_heads(detector.whitening_)
    corpus, pooled = attention_pool(train, heads, 0.0), attention_pool(test, heads, 0.0)
    expected = -torch.from_numpy(detector.score_samples(test))
    torch.testing.assert_close(squared_distances(pooled, corpus.value.mean(0)).sum(1), expected, rtol=1e-6, atol=0)
    # the paper's prototype weighs a sequence by its tokens, which is another vector here
    assert not torch.allclose(squared_distances(pooled, compute_prototype(corpus)).sum(1), expected, rtol=1e-3)


@given(st.integers(0, 2**31), st.integers(1, 9))
def test_linearly_independent_heads_induce_a_covariance(seed, dim):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    train = correlated_sequences(10, dim, seed=seed, dtype=torch.float64)
    pooled = attention_pool(train, as_heads(rows), 0.0)
    means = mean_pool(train)
    precision = sum(torch.outer(row, row) for row in rows)
    assert torch.linalg.eigvalsh(precision).min() > 0
    for mu in (means.mean(0), train.values.mean(0)):  # whatever the prototype is
        expected = torch.einsum("nd,de,ne->n", means - mu, precision, means - mu)
        torch.testing.assert_close(squared_distances(pooled, rows @ mu).sum(1), expected, rtol=1e-8, atol=1e-10)


@given(st.integers(0, 2**31), st.integers(1, 9))
def test_every_covariance_has_heads(seed, dim):
    generator = torch.Generator().manual_seed(seed)
    factor = torch.randn(dim, dim + 2, generator=generator, dtype=torch.float64)
    covariance = factor @ factor.T
    precision = torch.linalg.inv(covariance)
    scale = float(precision.abs().max())
    for rows in (inverse_root(covariance, floor=1e-12), along_eigenvectors(covariance)):
        torch.testing.assert_close(sum(torch.outer(row, row) for row in rows), precision, rtol=0, atol=1e-8 * scale)
        assert torch.linalg.matrix_rank(rows) == dim


def along_eigenvectors(covariance):
    """w_j = v_j / √λ_j, the paper's choice of heads."""
    values, vectors = torch.linalg.eigh(covariance)
    return vectors.T / values.sqrt()[:, None]


def test_the_root_of_a_singular_covariance_does_not_depend_on_rounding():
    few = torch.randn(10, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    there, back = (inverse_root(x.T @ x / 10, floor=1e-4) for x in (few, few.flip(0) * (1 + 1e-15)))
    torch.testing.assert_close(there, back, rtol=0, atol=1e-6 * float(there.abs().max()))


def loss_and_gradient(train, rows, regularizer):
    queries = as_heads(rows).clone().requires_grad_()
    loss = squared_distances(attention_pool(train, queries, 0.0)).mean(0).sum() - compute_regularizer(
        queries, regularizer
    )
    (gradient,) = torch.autograd.grad(loss, queries)
    return float(loss.detach()), float(gradient.abs().max())


def test_log_det_makes_mahalanobis_the_optimum(equal_lengths):
    train, _ = equal_lengths
    root = inverse_root(compute_moments(train, "none").covariance, 1e-12)
    generator = torch.Generator().manual_seed(5)
    for rows in (root, rotation(DIM, 3) @ root):
        least, gradient = loss_and_gradient(train, rows, "logdet")
        assert gradient < 1e-9
        for _ in range(20):
            change = 0.1 * torch.randn(DIM, DIM, generator=generator, dtype=torch.float64)
            assert loss_and_gradient(train, rows + change @ rows, "logdet")[0] > least


def test_the_papers_regulariser_does_not(equal_lengths):
    train, _ = equal_lengths
    root = inverse_root(compute_moments(train, "none").covariance, 1e-12)
    assert loss_and_gradient(train, rotation(DIM, 3) @ root, "norm")[1] > 0.1
    # Along the eigenvectors every head stands still, yet all of them on the one of least variance are better.
    rows = along_eigenvectors(compute_moments(train, "none").covariance)
    loss, gradient = loss_and_gradient(train, rows, "norm")
    assert gradient < 1e-9
    assert loss_and_gradient(train, rows[:1].expand(DIM, DIM), "norm")[0] < loss - 1
