"""Gradients with respect to the queries: against finite differences."""

import pytest
import torch
from builders import random_queries, random_tokens
from torch.autograd import gradcheck

from apood.detectors.ap_ood.training import compute_regularizer, squared_distances
from apood.pooling import Preprocessing, attention_pool, compute_prototype
from apood.pooling import blocked as blocked_module

D = 3
PREPROCESSINGS = {
    "as they are": Preprocessing(),
    "unit, shifted": Preprocessing(True, torch.tensor([0.1, -0.2, 0.3], dtype=torch.float64)),
}


@pytest.fixture(params=["whole", "in pieces"])
def lengths(request, monkeypatch):
    """Return lengths of sequences that are pooled in one block, or in many blocks of tokens and chunks of heads."""
    if request.param == "whole":
        return [1, 4, 2, 4]
    monkeypatch.setattr(blocked_module, "_THREAD_ELEMENTS", 1)
    monkeypatch.setattr(blocked_module, "_CHUNK_QUERIES", 3)
    return [1, 35, 4, 16, 5, 4]


@pytest.mark.parametrize("preprocessing", PREPROCESSINGS.values(), ids=PREPROCESSINGS.keys())
@pytest.mark.parametrize(("queries", "beta"), [(1, 0.8), (3, 0.8), (3, 0.0)])
@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
def test_against_finite_differences(lengths, similarity, queries, beta, preprocessing):
    tokens = random_tokens(lengths, D)
    weights = random_queries(2, queries, D).requires_grad_()
    assert gradcheck(lambda w: attention_pool(tokens, w, beta, similarity, preprocessing), weights)


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
def test_through_the_prototype_against_finite_differences(similarity):
    tokens = random_tokens([1, 4, 2, 4], D)
    weights = random_queries(2, 3, D).requires_grad_()

    def loss(w):
        distances = squared_distances(attention_pool(tokens, w, 0.8, similarity))
        return distances.mean(0).sum() - compute_regularizer(w, "logdet")

    assert gradcheck(loss, weights)


def test_the_prototype_carries_gradient():
    tokens, weights = random_tokens([2, 5, 3], D), random_queries(1, 1, D).requires_grad_()

    def gradient(through):
        pooled = attention_pool(tokens, weights, 0.8)
        mu = compute_prototype(pooled)
        return torch.autograd.grad(squared_distances(pooled, mu if through else mu.detach()).sum(), weights)[0]

    assert (gradient(True) - gradient(False)).abs().max() > 1e-3


def test_tokens_get_no_gradient():
    tokens = random_tokens([2, 5], D)
    tokens.values.requires_grad_()
    pooled = attention_pool(tokens, random_queries(2, 1, D).requires_grad_(), 0.8)
    pooled.value.sum().backward()
    assert tokens.values.grad is None


def test_an_empty_sequence_leaves_the_gradient_alone():
    weights = random_queries(2, 2, D).requires_grad_()

    def gradient(lengths):
        pooled = attention_pool(random_tokens(lengths, D), weights, 0.8)
        return torch.autograd.grad(squared_distances(pooled)[torch.tensor(lengths) > 0].sum(), weights)[0]

    torch.testing.assert_close(gradient([0, 3, 0, 5, 0]), gradient([3, 5]))
