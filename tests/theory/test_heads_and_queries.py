"""Heads are learnt alone, queries of one head together (paper, appendix C.3)."""

import torch
from builders import random_queries, random_tokens

from apood.detectors.ap_ood.training import compute_regularizer, squared_distances
from apood.pooling import attention_pool

TOKENS = random_tokens([3, 5, 1, 8, 4, 6, 2, 7], 4)


def train(weights, regularizer="norm", steps=50):
    """Plain gradient descent on the paper's loss."""
    weights = weights.clone().requires_grad_()
    optimizer = torch.optim.SGD([weights], lr=0.02)
    for _ in range(steps):
        loss = squared_distances(attention_pool(TOKENS, weights, 0.7)).mean(0).sum()
        loss = loss - compute_regularizer(weights, regularizer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return weights.detach()


def test_a_second_head_changes_nothing_in_the_first():
    both = random_queries(2, 2, 4)
    alone = train(both[:1])
    torch.testing.assert_close(train(both)[:1], alone, rtol=1e-9, atol=1e-12)
    assert (alone - both[:1]).abs().max() > 0.1  # it has moved


def test_a_second_query_changes_the_first():
    both = random_queries(1, 2, 4)
    assert (train(both)[:, :1] - train(both[:, :1])).abs().max() > 0.1


def test_log_det_couples_the_heads():
    both = random_queries(2, 2, 4)
    assert (train(both, "logdet")[:1] - train(both[:1], "logdet")).abs().max() > 0.01
