"""The preprocessing of tokens, their mean, and the rounding of queries."""

import pytest
import torch
from builders import random_queries, random_tokens
from hypothesis import given
from hypothesis import strategies as st

from apood.pooling import Preprocessing, attention_pool, mean_pool, round_queries
from apood.pooling.algebra import scale_to_dtype
from apood.tokens.batch import FLOAT_DTYPES

ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_means_are_exact_in_float64(dtype):
    tokens = random_tokens([1, 50, 3000, 2], 7, dtype=dtype)
    means = mean_pool(tokens)
    assert means.dtype == torch.float64
    torch.testing.assert_close(means, torch.stack([z.double().mean(0) for z in tokens]), rtol=1e-12, atol=1e-14)


def test_attention_at_beta_zero_is_the_mean_with_the_same_preprocessing():
    tokens, weights = random_tokens([4, 9], 5), random_queries(3, 1, 5)
    for preprocessing in (Preprocessing(), Preprocessing(unit=True), Preprocessing(True, torch.ones(5))):
        pooled = attention_pool(tokens, weights, 0.0, "dot", preprocessing)
        torch.testing.assert_close(mean_pool(tokens, preprocessing) @ weights[:, 0].T, pooled.value)


def test_the_mean_of_nothing_is_zero():
    means = mean_pool(random_tokens([0, 2, 0], 3))
    assert (means[[0, 2]] == 0).all() and (means[1] != 0).all()
    assert mean_pool(random_tokens([], 3)).shape == (0, 3)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.data())
def test_a_mean_does_not_depend_on_its_neighbours_at_all(lengths, data):
    tokens = random_tokens(lengths, 3, dtype=torch.float32)
    chosen = data.draw(st.permutations(range(len(lengths))))
    assert torch.equal(mean_pool(tokens.select(chosen)), mean_pool(tokens)[chosen])


@pytest.mark.parametrize("numbers", [3, 1000])
def test_where_blocks_are_cut_changes_nothing(numbers, monkeypatch):
    tokens = random_tokens([5, 0, 40, 1, 300], 3, dtype=torch.float32)
    expected = mean_pool(tokens, Preprocessing(unit=True))
    monkeypatch.setattr("apood.pooling.algebra._CPU_NUMBERS", numbers)
    assert torch.equal(mean_pool(tokens, Preprocessing(unit=True)), expected)


def test_large_offsets_do_not_cancel():
    tokens = random_tokens([2000], 3, dtype=torch.float32)
    tokens.values.add_(1e4)
    torch.testing.assert_close(mean_pool(tokens)[0], tokens.values.double().mean(0), rtol=1e-14, atol=0)


def test_tokens_of_unit_length_and_a_zero_token():
    z = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-18, 0.0], [-2e18, 0.0]])
    found = Preprocessing(unit=True).apply(z)
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.8], [0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]))


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 3e38), (torch.float64, 1e300)])
def test_a_token_whose_squares_overflow_has_no_direction(dtype, size):
    """As a zero vector it would be an ordinary token, and in-distribution."""
    found = Preprocessing(unit=True).apply(torch.tensor([[size, 0.0], [1.0, 0.0]], dtype=dtype))
    assert found[0].isnan().all() and found[1].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unit_length_never_makes_a_token_longer_than_one(dtype):
    sizes = torch.logspace(-300 if dtype == torch.float64 else -44, 15, 100, dtype=dtype)
    found = torch.linalg.vector_norm(Preprocessing(unit=True).apply(sizes[:, None] * torch.ones(3, dtype=dtype)), dim=1)
    assert (found <= 1 + 1e-6).all()


def test_the_origin_is_subtracted_after_scaling():
    origin = torch.tensor([0.6, 0.0], dtype=torch.float64)
    z = torch.tensor([[3.0, 4.0]])
    found = Preprocessing(True, origin).apply(z)
    assert found.dtype == z.dtype
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.8]]))
    torch.testing.assert_close(Preprocessing(False, origin).apply(z), torch.tensor([[2.4, 4.0]]))
    assert torch.equal(Preprocessing().apply(z), z)


@given(st.sampled_from(list(ROUNDING)), st.floats(-80, 80), st.integers(0, 99))
def test_rounding_loses_no_more_than_the_dtype_does_and_only_once(dtype, power, seed):
    queries = random_queries(3, 2, 5, seed=seed).float() * 2.0**power
    found = round_queries(queries, dtype)
    assert found.dtype == queries.dtype
    # what is tiny beside the largest number has fewer digits in float16
    least = 2.0**-13 * float(queries.abs().max()) if dtype == torch.float16 else 0.0
    assert ((found - queries).abs() <= ROUNDING[dtype] * queries.abs().clamp_min(least)).all()
    assert torch.equal(round_queries(found, dtype), found)
    weights, size = scale_to_dtype(found, dtype)
    assert weights.dtype == dtype and torch.equal(weights.float() if size is None else weights.float() * size, found)


@pytest.mark.parametrize("largest", [1.0, 0.99999994, 2047 / 2048])
def test_numbers_near_a_power_of_two_are_rounded_only_once(largest):
    queries = torch.tensor([[[largest, 2.0**-24 * 3, 1e-3]]])
    found = round_queries(queries, torch.float16)
    assert torch.equal(round_queries(found, torch.float16), found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_tokens_of_32_and_64_bits_round_no_queries(dtype):
    queries = random_queries(3, 2, 5).float()
    assert torch.equal(round_queries(queries, dtype), queries)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_zero_stays_zero(dtype):
    assert torch.equal(round_queries(torch.zeros(2, 1, 3), dtype), torch.zeros(2, 1, 3))
