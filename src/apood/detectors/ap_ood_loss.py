"""The losses of AP-OOD, from pooled values on."""

import math

import torch
from torch import Tensor

from apood.detectors.ap_ood_recipe import HeadReduction, Regularizer
from apood.pooling import Pooled, prototype

__all__ = ["log1mexp", "log_norms", "outlier_loss", "regularization", "squared_distances"]


def squared_distances(pooled: Pooled, mu: Tensor | None = None) -> Tensor:
    """d²_nj = (h_nj - μ_j)² `[N, M]`; μ is the prototype of these very sequences unless it is given."""
    return (pooled.value - (prototype(pooled) if mu is None else mu)).square()


def log_norms(queries: Tensor) -> Tensor:
    """The log |W_j|²_F of each head."""
    return queries.square().sum((1, 2)).log()


def regularization(queries: Tensor, regularizer: Regularizer) -> Tensor:
    """What keeps the heads from vanishing, to be maximised: one number for all heads.

    "norm" is the paper's Σ_j log |W_j|²: it treats each head alone, so that every head drifts to the
    direction of least variance and they end up on top of each other. "logdet" is the log-determinant
    of the Gram matrix of the flattened heads: equal to the former for orthogonal heads, and -inf when
    two of them coincide, so it also keeps them apart.
    """
    if regularizer == "norm":
        return log_norms(queries).sum()
    flat = queries.flatten(1).double()  # a Gram matrix has the square of the condition number
    volume: Tensor = torch.linalg.slogdet(flat @ flat.T).logabsdet
    return volume.to(queries.dtype)


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(-x)) for x >= 0, accurate at both ends; x = 0 counts as the smallest positive number."""
    x = x.clamp_min(torch.finfo(x.dtype).tiny)
    small = x < math.log(2)
    # each branch sees only arguments that it is good for, so that no NaN enters the gradient of the other
    near = torch.log(-torch.expm1(-torch.where(small, x, math.log(2))))
    far = torch.log1p(-torch.exp(-torch.where(small, math.log(2), x)))
    return torch.where(small, near, far)


def outlier_loss(distances: Tensor, reduction: HeadReduction) -> Tensor:
    """Mean over AUX sequences of -log(1 - exp(-d²)), which wants their d² to be large.

    d² summed over hundreds of heads makes exp(-d²) vanish and with it the gradient; the mean over
    heads stays of order 1.
    """
    total = distances.mean(1) if reduction == "mean" else distances.sum(1)
    return -log1mexp(total).mean()
