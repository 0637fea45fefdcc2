"""A pool with fixed queries gives what `attention_pool` gives, wherever it computes."""

import pytest
import torch
from builders import random_queries, random_tokens

from apood.pooling import FrozenPool, Preprocessing, attention_pool
from apood.support.errors import InputError

DTYPES = [torch.float64, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
def test_equals_attention_pool(similarity, dtype):
    queries, preprocessing = random_queries(3, 2, 5).float(), Preprocessing(True, torch.ones(5))
    pool = FrozenPool(queries, 0.6, similarity, preprocessing)
    for lengths in ([4, 0, 9], [7], [600]):
        tokens = random_tokens(lengths, 5, dtype=dtype)
        for found, expected in zip(
            pool(tokens), attention_pool(tokens, queries, 0.6, similarity, preprocessing), strict=True
        ):
            assert torch.equal(found, expected)


def test_has_no_gradients():
    queries = random_queries(3, 2, 5).requires_grad_()
    pooled = FrozenPool(queries, 0.6)(random_tokens([4], 5))
    assert not pooled.value.requires_grad and not pooled.log_mass.requires_grad


def test_refuses_what_attention_pool_refuses():
    with pytest.raises(InputError, match="beta"):
        FrozenPool(random_queries(1, 1, 3), -1.0)
    with pytest.raises(InputError, match=r"\[heads, queries, D\]"):
        FrozenPool(torch.zeros(2, 3), 1.0)
    with pytest.raises(InputError, match="cosine"):
        FrozenPool(random_queries(1, 1, 3), 1.0, "cosine")
    with pytest.raises(InputError, match=r"D=4.*D=3"):
        FrozenPool(random_queries(1, 1, 3), 1.0)(random_tokens([2], 4))


@pytest.mark.parametrize("tokens", [torch.zeros(2, 3), torch.zeros(2, 3).numpy(), [torch.zeros(2, 3)]], ids=type)
def test_refuses_what_is_no_batch(tokens):
    pool = FrozenPool(random_queries(1, 1, 3), 1.0)
    with pytest.raises(InputError, match=r"TokenBatch.*got (Tensor|ndarray|list)"):
        pool(tokens)
