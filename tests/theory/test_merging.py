"""Mini-batch attention pooling: pools of parts are as good as the pool of the whole (paper, appendix C.1)."""

import functools
import math

import pytest
import torch
from builders import random_queries, random_tokens
from hypothesis import given
from hypothesis import strategies as st

from apood.pooling import Pooled, attention_pool, compute_prototype, merge, merge_sequences

DIM = 4

splits = st.lists(st.integers(0, 6), min_size=1, max_size=8).filter(any)
betas = st.sampled_from([0.0, 0.3, 1.0, 20.0])
similarities = st.sampled_from(["dot", "euclidean"])


def whole(tokens):
    """All tokens as one sequence."""
    return type(tokens).from_lengths(tokens.values, [len(tokens.values)])


def assert_same(found, expected):
    for name in Pooled._fields:
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-10, atol=1e-10)


def row(pooled, index):
    return Pooled(pooled.value[index], pooled.log_mass[index])


@given(splits, betas, similarities, st.integers(1, 3))
def test_the_pool_of_all_sequences_is_that_of_their_concatenation(lengths, beta, similarity, queries):
    tokens, weights = random_tokens(lengths, DIM), random_queries(3, queries, DIM)
    pooled = attention_pool(tokens, weights, beta, similarity)
    expected = row(attention_pool(whole(tokens), weights, beta, similarity), 0)
    assert_same(merge_sequences(pooled), expected)
    torch.testing.assert_close(compute_prototype(pooled), expected.value, rtol=1e-10, atol=1e-10)


@given(splits, betas, similarities, st.data())
def test_pools_merge_in_any_order_and_grouping(lengths, beta, similarity, data):
    tokens, weights = random_tokens(lengths, DIM), random_queries(2, 2, DIM)
    pooled = attention_pool(tokens, weights, beta, similarity)
    parts = [row(pooled, i) for i in data.draw(st.permutations(range(len(lengths))))]
    while len(parts) > 1:  # any binary tree over any order
        right, left = parts.pop(data.draw(st.integers(0, len(parts) - 1))), parts.pop()
        parts.insert(data.draw(st.integers(0, len(parts))), merge(left, right))
    assert_same(parts[0], row(attention_pool(whole(tokens), weights, beta, similarity), 0))


@given(st.integers(1, 20), st.integers(1, 20), betas)
def test_batches_of_any_size_give_the_prototype(count, size, beta):
    tokens, weights = random_tokens([3] * count, DIM), random_queries(2, 1, DIM)
    pooled = attention_pool(tokens, weights, beta)
    batches = [Pooled(*parts) for parts in zip(*(x.split(size) for x in pooled), strict=True)]
    assert_same(functools.reduce(merge, map(merge_sequences, batches)), merge_sequences(pooled))


def test_an_empty_pool_is_neutral():
    nothing = Pooled(torch.zeros(3, dtype=torch.float64), torch.full((3,), -torch.inf, dtype=torch.float64))
    something = row(attention_pool(random_tokens([4], DIM), random_queries(3, 1, DIM), 1.0), 0)
    assert_same(merge(nothing, something), something)
    assert_same(merge(something, nothing), something)
    assert_same(merge(nothing, nothing), nothing)
    assert_same(merge_sequences(Pooled(torch.stack([nothing.value] * 2), torch.stack([nothing.log_mass] * 2))), nothing)


def test_masses_far_apart_merge_without_overflow():
    heavy = Pooled(torch.tensor([2.0]), torch.tensor([1e4]))
    light = Pooled(torch.tensor([-7.0]), torch.tensor([-1e4]))
    for merged in (merge(heavy, light), merge(light, heavy)):
        assert merged == (torch.tensor([2.0]), torch.tensor([1e4]))


def log_sum_exp(beta, a):
    """The lse(β, a) of Ramsauer et al."""
    return torch.logsumexp(beta * a, 0) / beta


def algorithm_2(z, w, beta, size):
    """The paper's attention pooling over a long sequence, line by line; `z` is `[D, S]`."""
    E = torch.tensor(-math.inf, dtype=z.dtype)
    mu = torch.zeros_like(w)
    for s in range(0, z.shape[1], size):
        B = z[:, s : s + size]
        E_B = log_sum_exp(beta, B.T @ w)
        p = torch.exp(beta * (B.T @ w - E_B))
        mu_B = B @ p
        p_B = torch.sigmoid(beta * (E_B - E))
        mu = p_B * mu_B + (1 - p_B) * mu
        E = log_sum_exp(beta, torch.stack([E_B, E]))
    return mu, E


@pytest.mark.parametrize("size", [1, 7, 100])
@pytest.mark.parametrize("beta", [0.2, 5.0])
def test_algorithm_2_of_the_paper_to_the_letter(size, beta):
    tokens, weights = random_tokens([30], DIM), random_queries(1, 1, DIM)
    z, w = tokens.values.T, weights[0, 0]
    mu, E = algorithm_2(z, w, beta, size)
    torch.testing.assert_close(mu, z @ torch.softmax(beta * z.T @ w, 0))
    pooled = attention_pool(tokens, weights, beta)
    torch.testing.assert_close(pooled.value[0, 0], w @ mu)
    torch.testing.assert_close(pooled.log_mass[0, 0], beta * E)
    # ours: the same batches as sequences, and the D-dimensional mu is never made
    batches = type(tokens).from_lengths(tokens.values, [len(part) for part in tokens.values.split(size)])
    torch.testing.assert_close(compute_prototype(attention_pool(batches, weights, beta))[0], w @ mu)
