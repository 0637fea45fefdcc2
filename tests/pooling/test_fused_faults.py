"""Non-finite values in the fused kernels: see `test_faults_show`."""

import pytest
import torch
from builders import random_tokens
from faults import DIM, assert_faults_show, faulty_batch, queries
from fused_checking import DEVICE, PLAIN, SLOTS, TINY

from apood.pooling import Preprocessing
from apood.pooling.fused import attention_pool_fused
from apood.pooling.kernels.tuning import force_tuning

# the interpreter computes -inf - -inf and 0 / 0 before it picks what is right
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("tuning", [TINY, PLAIN, SLOTS], ids=["tensor descriptors", "plain", "slots"])
@pytest.mark.parametrize(("similarity", "unit"), [("dot", False), ("euclidean", True)])
@pytest.mark.parametrize("length", [1, 70])
def test_faults_show_in_every_head(length, similarity, unit, tuning):
    w, preprocessing = queries().to(DEVICE), Preprocessing(unit, torch.ones(DIM, device=DEVICE))
    with force_tuning(tuning):
        assert_faults_show(
            lambda tokens: attention_pool_fused(tokens, w, 0.7, similarity, preprocessing, False).value,
            *(batch.to(DEVICE) for batch in faulty_batch(length, torch.float32, last=True)),
        )


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
def test_a_token_whose_squares_overflow_is_a_fault_among_unit_tokens(similarity):
    w = queries().to(DEVICE)
    tokens = random_tokens([3, 70, 2], DIM, dtype=torch.float32)
    tokens.values[20] = 1e30
    with force_tuning(TINY):
        found = attention_pool_fused(tokens.to(DEVICE), w, 0.7, similarity, Preprocessing(unit=True), False).value
    assert not found[1].isfinite().any() and found[[0, 2]].isfinite().all()
