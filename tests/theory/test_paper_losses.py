"""The paper's losses, written as its appendix C.2 and its section 3.2 write them, against those that are trained."""

from decimal import Decimal, localcontext

import pytest
import torch
from builders import random_queries, random_tokens

from apood.detectors.ap_ood.recipe import Start, resolve
from apood.detectors.ap_ood.training import (
    Training,
    compute_regularizer,
    log1mexp,
    log_norms,
    outlier_loss,
    squared_distances,
)
from apood.pooling import Preprocessing, attention_pool, compute_prototype

N, S, D = 6, 5, 4


def softmax_over_both(similarities, beta):
    """Over the last two dimensions of `[N, M, S, T]`; the pseudocode leaves out β."""
    return torch.softmax(beta * similarities.flatten(2), 2).view_as(similarities)


def pool_tokens(Zs, Ws, beta):
    """Algorithm 3: attention pooling over Z."""
    similarities = torch.einsum("nsd,mtd->nmst", Zs, Ws)
    Z_bars = torch.einsum("nsd,nmst->nmtd", Zs, softmax_over_both(similarities, beta))
    return torch.einsum("nmtd,mtd->nm", Z_bars, Ws)


def pool_similarities(Zs, Ws, beta):
    """Algorithm 4: attention pooling over Wᵀ Z."""
    similarities = torch.einsum("nsd,mtd->nmst", Zs, Ws)
    return torch.einsum("nmst,nmst->nm", similarities, softmax_over_both(similarities, beta))


def paper_distances(pool, Zs, corpus, Ws, beta):
    """The d²_j of each sequence to the concatenation of `corpus`."""
    Z_tilde = corpus.flatten(0, 1).unsqueeze(0)
    return (pool(Zs, Ws, beta) - pool(Z_tilde, Ws, beta)) ** 2


def paper_loss(pool, Zs, Ws, beta):
    regularizer = torch.log((Ws * Ws).sum(dim=(1, 2)))
    return (paper_distances(pool, Zs, Zs, Ws, beta) - regularizer).sum(dim=1).mean()


def paper_supervised_loss(Zs, aux, Ws, beta, weight):
    """Both sums over N + N', no regulariser."""
    count = len(Zs) + len(aux)
    inside = paper_distances(pool_similarities, Zs, Zs, Ws, beta).sum(1)
    outside = paper_distances(pool_similarities, aux, Zs, Ws, beta).sum(1)
    return inside.sum() / count - weight * torch.log(1 - torch.exp(-outside)).sum() / count


def padded(tokens):
    return tokens.values.view(-1, S, D)


@pytest.fixture
def sequences():
    return random_tokens([S] * N, D)


@pytest.fixture
def outliers():
    return random_tokens([S] * 3, D, seed=7)


def with_gradient(loss, weights):
    value = loss(weights)
    (gradient,) = torch.autograd.grad(value, weights)
    return value.detach(), gradient


def trained_loss(sequences, aux, weights, beta, recipe, **arguments):
    """The loss of a step of `Training` on a batch that holds all sequences, in float64."""
    resolved = resolve(recipe, batch_size=N, steps=1, **arguments)
    start = Start(Preprocessing(), None, weights, beta)
    training = Training(sequences, aux, resolved, start, weights, seed=0)
    try:
        return training(1)[0]  # step 1 of 1: any warm-up is over
    finally:
        training.close()


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_both_forms_of_the_pseudocode_and_ours_agree(sequences, beta, queries):
    weights = random_queries(3, queries, D).requires_grad_()

    def ours(Ws):
        distances = squared_distances(attention_pool(sequences, Ws, beta))
        return distances.sum(1).mean() - compute_regularizer(Ws, "norm")

    expected = with_gradient(lambda Ws: paper_loss(pool_tokens, padded(sequences), Ws, beta), weights)
    for loss in (
        lambda Ws: paper_loss(pool_similarities, padded(sequences), Ws, beta),
        ours,
        lambda Ws: trained_loss(sequences, None, Ws, beta, "paper"),
    ):
        torch.testing.assert_close(with_gradient(loss, weights), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("aux_weight", [0.0, 0.1, 10.0])
def test_the_supervised_loss_of_the_paper(sequences, outliers, aux_weight):
    weights, beta = random_queries(3, 2, D, scale=0.3).requires_grad_(), 0.7
    expected = with_gradient(
        lambda Ws: paper_supervised_loss(padded(sequences), padded(outliers), Ws, beta, aux_weight), weights
    )
    found = with_gradient(
        lambda Ws: trained_loss(sequences, outliers, Ws, beta, "paper", aux_weight=aux_weight), weights
    )
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("aux_weight", [0.0, 0.1, 10.0])
def test_the_robust_supervised_loss_is_the_unsupervised_one_and_a_mean_over_aux(sequences, outliers, aux_weight):
    weights, beta = random_queries(3, 2, D, scale=0.3).requires_grad_(), 0.7
    mu = compute_prototype(attention_pool(sequences, weights, beta))
    per_sequence = squared_distances(attention_pool(outliers, weights, beta), mu).mean(1)
    penalty = -torch.log(1 - torch.exp(-per_sequence)).mean()
    unsupervised = trained_loss(sequences, None, weights, beta, "robust")
    found = trained_loss(sequences, outliers, weights, beta, "robust", aux_weight=aux_weight)
    torch.testing.assert_close(found, unsupervised + aux_weight * penalty, rtol=1e-10, atol=0)


@pytest.mark.parametrize("regularizer", ["norm", "logdet"])
def test_the_mean_over_heads_is_the_sum_divided(sequences, regularizer):
    weights = random_queries(3, 2, D)
    by_sum, by_mean = (
        trained_loss(sequences, None, weights, 0.7, "paper", regularizer=regularizer, head_reduction=reduction)
        for reduction in ("sum", "mean")
    )
    torch.testing.assert_close(by_mean, by_sum / 3)


def test_log_det_equals_the_norms_for_orthogonal_heads_and_punishes_parallel_ones():
    heads = torch.diag(torch.tensor([0.5, 2.0, 3.0, 1.0], dtype=torch.float64)).view(2, 2, 4)
    torch.testing.assert_close(compute_regularizer(heads, "logdet"), log_norms(heads).sum())
    tilted = heads + 0.5 * heads.flip(0)
    assert compute_regularizer(tilted, "logdet") < compute_regularizer(tilted, "norm")
    parallel = heads[:1].expand(2, 2, 4).clone().requires_grad_()
    assert compute_regularizer(parallel, "logdet") == -torch.inf
    (gradient,) = torch.autograd.grad(compute_regularizer(parallel, "logdet"), parallel)
    assert gradient.isnan().all(), "which ends a fit"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log1mexp_is_accurate_at_both_ends(dtype):
    x = torch.logspace(-30, 2.5, 100, dtype=dtype)
    with localcontext(prec=200):
        expected = [float((1 - (-Decimal(value)).exp()).ln()) for value in x.tolist()]
    found = log1mexp(x).double()
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float64), rtol=8 * torch.finfo(dtype).eps, atol=1e-40
    )


def test_log1mexp_has_finite_gradients_everywhere():
    x = torch.tensor([0.0, 1e-30, 1e-8, 0.5, 0.6931, 0.7, 5.0, 80.0, 1e4], requires_grad=True)
    (gradient,) = torch.autograd.grad(log1mexp(x).sum(), x)
    assert torch.isfinite(log1mexp(x)).all() and torch.isfinite(gradient).all()
    positive = x.detach().double()[1:]
    torch.testing.assert_close(gradient[1:].double(), 1 / torch.expm1(positive), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_outlier_loss_wants_distance(reduction):
    near, far = torch.full((3, 4), 0.01), torch.full((3, 4), 2.0)
    assert outlier_loss(near, reduction) > outlier_loss(far, reduction) > 0
    total = 2.0 if reduction == "mean" else 8.0
    expected = -torch.log(1 - torch.exp(torch.tensor(-total)))
    torch.testing.assert_close(outlier_loss(far, reduction), expected)
