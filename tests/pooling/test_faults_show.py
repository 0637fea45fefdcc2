"""A sequence with a non-finite value has no finite pool, and no other sequence changes: scoring relies on this."""

import itertools

import pytest
import torch
from faults import DIM, assert_faults_show, faulty_batch, queries

from apood.pooling import Preprocessing, attention_pool, blocked, mean_pool


@pytest.mark.parametrize("length", [1, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("elements", [2**19, 64], ids=["whole", "in pieces"])
def test_in_every_head(length, dtype, elements, monkeypatch):
    monkeypatch.setattr(blocked, "_THREAD_ELEMENTS", elements)
    preprocessings = (Preprocessing(), Preprocessing(True, torch.ones(DIM)))
    for last in (False, True):
        batches = faulty_batch(length, dtype, last=last)
        for how in itertools.product((0.0, 0.7), ("dot", "euclidean"), preprocessings):
            assert_faults_show(lambda tokens, how=how: attention_pool(tokens, queries(), *how).value, *batches)


@pytest.mark.parametrize("length", [1, 300])
@pytest.mark.parametrize("unit", [False, True])
def test_in_a_mean(length, unit):
    batches = faulty_batch(length, torch.float32, last=True)
    assert_faults_show(lambda tokens: mean_pool(tokens, Preprocessing(unit)).sum(1), *batches)
