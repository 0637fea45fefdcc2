"""The losses of AP-OOD, from pooled values on, with gradients by hand.

Tensors are small here, so what counts is how many operations there are: each of them is a launch on a GPU, and autograd
would add two or three to every one.
"""

import math
from typing import Any

import torch
from torch import Tensor

from apood.detectors.ap_ood.recipe import HeadReduction, Regularizer
from apood.pooling import Pooled, prototype, shares

__all__ = ["log1mexp", "log_norms", "outlier_loss", "over_heads", "regularization", "spread", "squared_distances"]


def squared_distances(pooled: Pooled, mu: Tensor | None = None) -> Tensor:
    """d²_nj = (h_nj - μ_j)² `[N, M]`; μ is the prototype of these very sequences unless it is given."""
    return (pooled.value - (prototype(pooled) if mu is None else mu)).square()


def spread(pooled: Pooled) -> tuple[Tensor, Tensor]:
    """The mean d² of each head to the prototype of these very sequences, and that prototype, both `[M]`.

    Equal to `squared_distances(pooled).mean(0)` and `prototype(pooled)`, for sequences that are not empty.
    """
    distances, mu = _Spread.apply(*pooled)  # type: ignore[no-untyped-call]
    return distances, mu


class _Spread(torch.autograd.Function):
    """With p_n = softmax_n(L), μ = Σ p h and e = h - μ: dμ/dh = p, dμ/dL = p e, and d(mean e²)/dμ = -2 mean e."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, log_mass: Tensor) -> Any:
        weights = shares(log_mass)
        mu = torch.linalg.vecdot(weights, value, dim=0)
        deviations = value - mu
        ctx.save_for_backward(weights, deviations)
        ctx.set_materialize_grads(False)
        return deviations.square().mean(0), mu

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_distances: Tensor | None, of_mu: Tensor | None) -> Any:
        weights, deviations = ctx.saved_tensors
        through_mu, against = of_mu, None
        if of_distances is not None:
            against = of_distances * (-2 / len(deviations))
            through = against * deviations.sum(0)
            through_mu = through if of_mu is None else through + of_mu
        assert through_mu is not None, "autograd asks only for what a loss depends on"
        weighted = weights * through_mu
        of_value = weighted if against is None else torch.addcmul(weighted, deviations, against, value=-1)
        return of_value, weighted * deviations


def log_norms(queries: Tensor) -> Tensor:
    """The log |W_j|²_F of each head."""
    result: Tensor = _LogNorms.apply(queries)  # type: ignore[no-untyped-call]
    return result


class _LogNorms(torch.autograd.Function):
    """Its gradient is 2 W_j / |W_j|²."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor) -> Any:
        squares = torch.linalg.vector_norm(queries, dim=(1, 2)).square_()
        ctx.save_for_backward(queries, squares)
        return squares.log()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        queries, squares = ctx.saved_tensors
        return queries * (2 * grad / squares)[:, None, None]


def regularization(queries: Tensor, regularizer: Regularizer) -> Tensor:
    """What keeps the heads from vanishing, to be maximised: one number for all heads.

    "norm" is the paper's Σ_j log |W_j|²: it treats each head alone, so that every head drifts to the
    direction of least variance and they end up on top of each other. "logdet" is the log-determinant
    of the Gram matrix of the flattened heads: equal to the former for orthogonal heads, and -inf when
    two of them coincide, so it also keeps them apart.
    """
    if regularizer == "norm":
        return log_norms(queries).sum()
    volume: Tensor = _LogVolume.apply(queries.flatten(1))  # type: ignore[no-untyped-call]
    return volume


class _LogVolume(torch.autograd.Function):
    """log det F Fᵀ of `F [M, K]`, whose gradient is 2 (F Fᵀ)⁻¹ F."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor) -> Any:
        wide = flat.double()  # a Gram matrix has the square of the condition number
        root, pivot = torch.linalg.cholesky_ex(wide @ wide.T)  # not `cholesky`, which makes a GPU wait
        flawed = pivot != 0  # heads coincide: there is no gradient, and the next look at the loss ends the fit
        ctx.save_for_backward(flat, root.masked_fill_(flawed, torch.nan))
        volume = 2 * root.diagonal().log().sum()
        return torch.where(flawed, -torch.inf, volume).to(flat.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        flat, root = ctx.saved_tensors
        return (2 * grad) * (torch.cholesky_inverse(root).to(flat.dtype) @ flat)


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(-x)) for x >= 0, accurate at both ends; x = 0 counts as the smallest positive number."""
    result: Tensor = _Log1mexp.apply(x)  # type: ignore[no-untyped-call]
    return result


class _Log1mexp(torch.autograd.Function):
    """Its derivative is 1 / (exp(x) - 1)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        x = x.clamp_min(torch.finfo(x.dtype).tiny)
        return torch.where(x < math.log(2), torch.log(-torch.expm1(-x)), torch.log1p(-torch.exp(-x)))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        # a distance of 0 does not move: there is no telling where to
        return torch.where(x >= torch.finfo(x.dtype).tiny, grad / torch.expm1(x), 0.0)


def outlier_loss(distances: Tensor, reduction: HeadReduction) -> Tensor:
    """Mean over AUX sequences of -log(1 - exp(-d²)), which wants their d² to be large.

    d² summed over hundreds of heads makes exp(-d²) vanish and with it the gradient; the mean over
    heads stays of order 1.
    """
    return -log1mexp(over_heads(distances, reduction)).mean()


def over_heads(distances: Tensor, reduction: HeadReduction) -> Tensor:
    """The d² `[N]` of whole sequences."""
    return distances.mean(1) if reduction == "mean" else distances.sum(1)
