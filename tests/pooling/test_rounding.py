"""Rounded queries: as near as the dtype of the tokens allows, and rounded once and for all."""

import pytest
import torch
from builders import random_queries
from hypothesis import given
from hypothesis import strategies as st

from apood.pooling import round_queries
from apood.pooling.preprocessing import scale_to_dtype

ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


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


@pytest.mark.parametrize("largest", [1.0, 0.99999994, 2047 / 2048, 1024.0])
def test_numbers_near_a_power_of_two_are_rounded_only_once(largest):
    queries = torch.tensor([[[largest, 2.0**-24 * 3, 1e-3]]])
    found = round_queries(queries, torch.float16)
    assert torch.equal(round_queries(found, torch.float16), found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_wide_tokens_leave_queries_as_they_are(dtype):
    queries = random_queries(3, 2, 5).float()
    assert torch.equal(round_queries(queries, dtype), queries)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_zero_stays_zero(dtype):
    assert torch.equal(round_queries(torch.zeros(2, 1, 3), dtype), torch.zeros(2, 1, 3))
