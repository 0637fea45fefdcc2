"""Attention pooling equals its definition for every shape and dtype, and does not depend on neighbours."""

import math

import pytest
import torch
from builders import random_queries, random_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from apood.pooling import Pooled, Preprocessing, attention_pool
from apood.pooling.eager import attention_pool_eager
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch

SHAPES = {
    "one token": ([1], 1, 1, 1),
    "two tokens": ([2], 33, 5, 3),
    "D = 1": ([3, 1, 8], 1, 5, 3),
    "100,000 tokens": ([100_000], 3, 2, 2),
    "all lengths": ([1, 2, 3, 17, 500, 2, 33, 3000], 33, 5, 3),
    "more queries than a chunk": ([5, 9, 5], 4, 700, 3),
    "a head larger than a chunk": ([5, 9], 2, 2, 2050),
    "some empty": ([0, 3, 0, 0, 7, 3, 0], 5, 2, 3),
}


def assert_same(found, expected, tolerance):
    for name in Pooled._fields:
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
@pytest.mark.parametrize(("lengths", "dim", "heads", "queries"), SHAPES.values(), ids=SHAPES.keys())
def test_equals_its_definition(lengths, dim, heads, queries, similarity):
    tokens, weights = random_tokens(lengths, dim), random_queries(heads, queries, dim)
    for beta in (0.0, 0.6):
        expected = attention_pool_eager(tokens, weights, beta, similarity)
        assert expected.value.shape == (len(lengths), heads)
        assert_same(attention_pool(tokens, weights, beta, similarity), expected, 1e-10)


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("origin", [None, torch.arange(5.0, dtype=torch.float64)])
def test_the_tokens_are_preprocessed(unit, origin):
    tokens, weights, preprocessing = random_tokens([4, 1, 9], 5), random_queries(3, 2, 5), Preprocessing(unit, origin)
    seen = TokenBatch(preprocessing.apply(tokens.values), tokens.offsets)
    for pool in (attention_pool, attention_pool_eager):
        assert_same(
            pool(tokens, weights, 0.6, "euclidean", preprocessing),
            attention_pool(seen, weights, 0.6, "euclidean"),
            1e-12,
        )


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.bfloat16, 1e-5), (torch.float64, 1e-12)],
    ids=str,
)
def test_every_dtype_is_only_as_wrong_as_its_computation(dtype, tolerance, similarity):
    tokens, weights = random_tokens([1, 40, 300, 2500], 33, dtype=dtype), random_queries(5, 3, 33, scale=0.5)
    weights = weights.to(torch.float32).double()  # what the computation sees
    pooled = attention_pool(tokens, weights, 0.6, similarity)
    assert pooled.value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    expected = attention_pool_eager(tokens.to(dtype=torch.float64), weights, 0.6, similarity)
    assert_same(Pooled(*(x.double() for x in pooled)), expected, tolerance)


def test_beta_zero_is_the_mean():
    tokens, weights = random_tokens([3, 8], 4), random_queries(2, 3, 4)
    pooled = attention_pool(tokens, weights, 0.0)
    means = torch.stack([z.mean(0) @ weights.mean(1).T for z in tokens])
    torch.testing.assert_close(pooled.value, means)
    torch.testing.assert_close(pooled.log_mass, torch.tensor([[math.log(3 * 3)] * 2, [math.log(8 * 3)] * 2]).double())


def test_large_beta_is_the_maximum():
    tokens, weights = random_tokens([3, 8], 4), random_queries(2, 3, 4)
    largest = torch.stack([torch.einsum("sd,mtd->mts", z, weights).flatten(1).amax(1) for z in tokens])
    torch.testing.assert_close(attention_pool(tokens, weights, 1e4).value, largest)


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
def test_nothing_overflows_at_logits_of_ten_thousand(similarity):
    tokens = random_tokens([1, 7, 40, 3000], 8, dtype=torch.float32, scale=30)
    weights = random_queries(4, 2, 8, dtype=torch.float32, scale=30).requires_grad_()
    beta = 1e4 / float((tokens.values @ weights.detach().flatten(0, 1).T).abs().max())
    pooled = attention_pool(tokens, weights, beta, similarity)
    (gradient,) = torch.autograd.grad(pooled.value.sum() + pooled.log_mass.sum(), weights)
    for x in (*pooled, gradient):
        assert torch.isfinite(x).all()
    exact = attention_pool_eager(tokens.to(dtype=torch.float64), weights.detach().double(), beta, similarity)
    # a logit of 1e4 is known to 1e-3 in float32, and so is the weight of its token
    for found, expected in zip(pooled, exact, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-2)


def test_an_empty_sequence_has_value_zero_and_no_mass():
    weights = random_queries(3, 2, 4)
    pooled = attention_pool(random_tokens([0, 2, 0], 4), weights, 0.6)
    for index in (0, 2):
        assert (pooled.value[index] == 0).all() and (pooled.log_mass[index] == -torch.inf).all()
    assert torch.isfinite(pooled.log_mass[1]).all()
    for lengths in ([0, 0], []):
        nothing = attention_pool(random_tokens(lengths, 4), weights, 0.6)
        assert nothing.value.shape == nothing.log_mass.shape == (len(lengths), 3)


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 60), min_size=2, max_size=12),
    st.sampled_from(["dot", "euclidean"]),
    st.sampled_from([0.0, 0.5, 3.0]),
    st.data(),
)
def test_neighbours_and_order_do_not_matter(lengths, similarity, beta, data):
    tokens = random_tokens(lengths, 6, dtype=torch.float32)
    weights = random_queries(3, 2, 6, dtype=torch.float32)
    together = attention_pool(tokens, weights, beta, similarity)
    order = data.draw(st.permutations(range(len(lengths))))
    chosen = order[: data.draw(st.integers(1, len(lengths)))]
    apart = attention_pool(tokens.select(chosen), weights, beta, similarity)
    scale = float((tokens.values @ weights.flatten(0, 1).T).abs().max())  # of the terms that are summed
    for found, expected in zip(apart, together, strict=True):
        torch.testing.assert_close(found, expected[chosen], rtol=1e-6, atol=1e-6 * max(1.0, beta) * scale)


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
def test_the_order_of_tokens_and_queries_does_not_matter(similarity):
    tokens, weights = random_tokens([50], 6), random_queries(3, 4, 6)
    expected = attention_pool(tokens, weights, 0.5, similarity)
    shuffled = TokenBatch(tokens.values[torch.randperm(50, generator=torch.Generator().manual_seed(0))], tokens.offsets)
    assert_same(attention_pool(shuffled, weights.flip(1), 0.5, similarity), expected, 1e-12)


def test_whitening_folds_into_the_queries():
    tokens, weights = random_tokens([4, 9], 5), random_queries(3, 2, 5)
    mixing = random_queries(1, 5, 5, seed=4)[0]
    whitened = TokenBatch(tokens.values @ mixing.T, tokens.offsets)
    assert_same(attention_pool(tokens, weights @ mixing, 0.5), attention_pool(whitened, weights, 0.5), 1e-12)


@pytest.mark.parametrize("beta", [-1e-9, math.nan, math.inf])
def test_a_bad_temperature_is_refused(beta):
    with pytest.raises(InputError, match=rf"beta .*>= 0, got {beta}"):
        attention_pool(random_tokens([2], 3), random_queries(1, 1, 3), beta)


@pytest.mark.parametrize("shape", [(0, 1, 3), (2, 3), (1, 1, 1, 3)], ids=str)
def test_queries_of_a_wrong_shape_are_refused(shape):
    with pytest.raises(InputError, match=r"\[heads, queries, D\].* got \("):
        attention_pool(random_tokens([2], 3), torch.zeros(shape), 1.0)


def test_queries_of_another_dimension_are_refused():
    with pytest.raises(InputError, match=r"D=3.*D=4"):
        attention_pool(random_tokens([2], 3), random_queries(1, 1, 4), 1.0)


def test_an_unknown_similarity_is_refused():
    with pytest.raises(InputError, match=r"similarity .*dot, euclidean, got 'cosine'"):
        attention_pool(random_tokens([2], 3), random_queries(1, 1, 3), 1.0, "cosine")
