"""What the paper's appendices claim of scores, kernels and associative memory, checked on numbers."""

import itertools
import math

import pytest
import torch
from builders import random_queries, random_tokens
from hypothesis import assume, given
from hypothesis import strategies as st

from apood.detectors.ap_ood.training import log_norms, squared_distances
from apood.pooling import attention_pool, compute_prototype

D = 4
TRAIN = random_tokens([5] * 8, D)
RAGGED = random_tokens([1, 2, 9, 4, 4], D, seed=3)


# appendix B.1: the score


def scores_a_head(tokens, weights, beta):
    """The -d²_j + log |w_j|² of each sequence and head."""
    mu = compute_prototype(attention_pool(TRAIN, weights, beta))
    return log_norms(weights) - squared_distances(attention_pool(tokens, weights, beta), mu)


@given(st.floats(-8, 2), st.floats(0.05, 4), st.floats(0, 2), st.integers(0, 2**31))
def test_a_head_is_below_the_bound_exactly_where_its_density_is_below_epsilon(log_epsilon, norm, beta, seed):
    weights = norm * torch.nn.functional.normalize(random_queries(1, 1, D, seed=seed), dim=-1)
    w = weights[0, 0]
    z = RAGGED.sequence(2)
    z_bar = torch.softmax(beta * z @ w, 0) @ z
    mu = torch.softmax(beta * TRAIN.values @ w, 0) @ TRAIN.values
    density = torch.distributions.Normal(w @ mu / norm, 1 / norm).log_prob(w @ z_bar / norm)
    score = scores_a_head(RAGGED, weights, beta)[2, 0]
    bound = 2 * log_epsilon + math.log(2 * math.pi)
    torch.testing.assert_close(score, 2 * density + math.log(2 * math.pi), rtol=1e-8, atol=1e-8)
    assume(abs(float(density) - log_epsilon) > 1e-6)
    assert (density < log_epsilon) == (score < bound)


@given(st.integers(1, 5), st.floats(0.01, 30), st.integers(0, 2**31))
def test_the_minimum_is_bounded_by_the_mean_over_heads(heads, scale, seed):
    """The paper calls the sum an upper bound of the minimum; what always holds is M s_min <= s.

    The sum itself is above the minimum where no head's score is negative, and below where all are.
    """
    each = scores_a_head(RAGGED, random_queries(heads, 2, D, seed=seed, scale=scale), 0.5)
    total, least = each.sum(1), each.amin(1)
    assert (heads * least <= total + 1e-9).all()
    assert (least <= total + 1e-9)[(each >= 0).all(1)].all()
    assert (total <= least + 1e-9)[(each <= 0).all(1)].all()


def test_the_sum_is_not_always_above_the_minimum():
    each = scores_a_head(RAGGED, random_queries(3, 1, D, scale=0.1), 0.5)
    assert (each < 0).all() and (each.sum(1) < each.amin(1)).all()


# appendix B.3: the kernel view


@pytest.mark.parametrize("tokens", [TRAIN, RAGGED], ids=["equal lengths", "ragged"])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.5])
def test_the_kernel_view_is_the_distance(tokens, beta):
    weights = random_queries(3, 2, D)

    def k_prime(z, w):
        return torch.exp(beta * z @ w.T)

    def k(z, w):
        return k_prime(z, w) * (z @ w.T)

    def ratio(z, head):
        return k(z, head).sum() / k_prime(z, head).sum()

    expected = torch.stack(
        [torch.stack([(ratio(z, head) - ratio(TRAIN.values, head)) ** 2 for head in weights]) for z in tokens]
    )
    mu = compute_prototype(attention_pool(TRAIN, weights, beta))
    torch.testing.assert_close(squared_distances(attention_pool(tokens, weights, beta), mu), expected)


# appendix on modern Hopfield networks


@pytest.mark.parametrize("queries", [1, 3])
def test_the_gradient_of_the_log_mass_is_the_attention_pool(queries):
    weights, beta = random_queries(2, queries, D).requires_grad_(), 0.8
    tokens = RAGGED.select([2])
    (gradient,) = torch.autograd.grad(attention_pool(tokens, weights, beta).log_mass.sum(), weights)
    z = tokens.values
    for head, found in zip(weights.detach(), gradient, strict=True):
        attention = torch.softmax((beta * z @ head.T).flatten(), 0).view(len(z), queries)
        torch.testing.assert_close(found / beta, attention.T @ z)


def test_attention_pooling_walks_down_the_energy_of_a_hopfield_network():
    beta, patterns = 2.0, RAGGED.select([2])
    state = random_queries(1, 1, D, seed=5)

    def energy_and_gradient(state):
        state = state.clone().requires_grad_()
        energy = -attention_pool(patterns, state, beta).log_mass.sum() / beta + state.square().sum() / 2
        return energy.detach(), torch.autograd.grad(energy, state)[0]

    energies = []
    for _ in range(200):
        energy, gradient = energy_and_gradient(state)
        energies.append(float(energy))
        state = state - gradient  # ξ - (ξ - AttPool(X, ξ)): the update rule
    assert all(after <= before + 1e-12 for before, after in itertools.pairwise(energies))
    assert energy_and_gradient(state)[1].abs().max() < 1e-9
    assert energies[-1] < energies[0] - 0.1
