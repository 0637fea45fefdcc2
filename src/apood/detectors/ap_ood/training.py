"""The training of AP-OOD: losses, the objective of each step, the pass over the corpus, and warnings of failure.

Gradients of the losses are written by hand: their tensors are small, so that the number of operations counts, each of
which is a launch on a GPU. Autograd would add two or three to every one.
"""

import contextlib
import math
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from apood.detectors.ap_ood.recipe import HeadReduction, Recipe, Regularizer, Start
from apood.detectors.shared.mean_pooling import describe_shortage
from apood.fitting.optimise import Outcome, warm_up
from apood.pooling import (
    Pooled,
    attention_pool,
    compute_prototype,
    compute_shares,
    merge,
    merge_sequences,
)
from apood.support.errors import DivergedWarning, FitWarning
from apood.support.progress import progress_bar
from apood.tokens.batch import TokenBatch, upload
from apood.tokens.loader import Resident, gather_sequences, move_to_device, shuffle_batches
from apood.tokens.source import TokenSource, token_budget

__all__ = [
    "CorpusPool",
    "Outliers",
    "Training",
    "compute_regularizer",
    "estimate_batch_bytes",
    "find_failures",
    "log1mexp",
    "log_norms",
    "measure_spread",
    "outlier_loss",
    "pool_corpus",
    "reduce_heads",
    "squared_distances",
]

_UNSETTLED = 4.0  # mean d² per head; good fits end between 0.4 and 1.7
_COLLAPSED = 0.99  # absolute cosine between two heads
_COLLAPSED_SHARE = 0.1  # of the heads
_DEAD = 1e-6  # variance of a head, relative to the median one
# d² of AUX sequences. The gradient with respect to d² is 1 for an ID sequence and -λ / (exp(d²) - 1) for an AUX one.
# Beyond this value it is below a millionth at λ = 1, which is lost in the rounding of float32 sums.
_UNFELT = 14.0


class Outliers(NamedTuple):
    """How far away AUX sequences were in a fit.

    Attributes:
        distance: -log of their mean exp(-d²), at the start or at the end, whichever is nearer.
        recipe: the settings of the fit.
    """

    distance: float
    recipe: Recipe


def find_failures(
    weights: Tensor,
    variances: Tensor,
    distance: float,
    sequences: int,
    outcome: Outcome,
    outliers: Outliers | None,
) -> list[FitWarning]:
    """Return a warning for each failure.

    Args:
        weights: `[M, T, D]` in the space of the training.
        variances: variance of the pooled value over the training sequences, per head.
        distance: mean d² per head over the training sequences.
        sequences: number of training sequences.
        outcome: how the optimisation ended.
        outliers: how far away AUX sequences were; None if the loss ignores them.
    """
    found = [FitWarning(message) for message in _describe_failures(weights, variances, distance, sequences)]
    if outcome.diverged_at is not None:
        diverged = DivergedWarning(
            f"Training broke off at step {outcome.diverged_at} because the loss was no longer finite, and the last "
            "finite weights were kept; use recipe='robust' or a smaller learning_rate."
        )
        found.insert(0, diverged)
    if outliers is not None and (unused := _describe_unused_aux(outliers, len(weights), distance)) is not None:
        found.append(FitWarning(unused))
    return found


def _describe_failures(weights: Tensor, variances: Tensor, distance: float, sequences: int) -> list[str]:
    """Return a message per failure."""
    heads, _, dim = weights.shape
    found = []
    if (few := describe_shortage(sequences, dim)) is not None:
        found.append(few)
    if distance > _UNSETTLED:
        found.append(
            f"Training has not settled: the mean squared distance per head is {distance:.3g}, but should be about 1; "
            "use more steps or a smaller beta, or recipe='robust' if this was another recipe."
        )
    if (collapsed := _measure_collapse(weights)) > _COLLAPSED_SHARE:
        found.append(
            f"{collapsed:.0%} of the {heads} heads have collapsed onto another head and add nothing; "
            "use regularizer='logdet' or fewer steps."
        )
    if dead := int((variances <= _DEAD * variances.median()).sum()):
        found.append(
            f"{dead} of the {heads} heads are dead: their value is the same for every ID sequence; "
            "use recipe='robust' or a smaller beta."
        )
    return found


def _measure_collapse(weights: Tensor) -> float:
    """Return the share of heads that have the same or the opposite direction as an earlier head."""
    directions = torch.nn.functional.normalize(weights.flatten(1), dim=1)
    cosines = (directions @ directions.T).abs().tril(-1)
    return float((cosines.amax(1) > _COLLAPSED).double().mean())


def _describe_unused_aux(outliers: Outliers, heads: int, inside: float) -> str | None:
    """Return a message if AUX sequences were too far away to learn from; `inside` is the mean d² per head of ID."""
    distance, recipe = outliers
    limit = _UNFELT + math.log(max(recipe.aux_weight, 1.0))
    if not distance > limit:
        return None
    summed = recipe.head_reduction == "sum"
    per_head = distance / heads if summed else distance
    if per_head > limit and inside <= _UNSETTLED:
        return (
            "The AUX sequences taught nothing because they differ from ID anyway: their mean squared distance per head "
            f"is at least {per_head:.3g} at the start and at the end, that of ID {inside:.3g}; "
            "use AUX sequences that are more like ID ones, or none."
        )
    which = f"summed over {heads} heads" if summed else "per head"
    if recipe.start == "normal":
        remedy = "start='scaled', recipe='reference' or recipe='robust', which begin nearer"
    else:
        remedy = "normalize='tokens'" if not recipe.unit_tokens else "more steps or a smaller beta"
    return (
        f"The AUX sequences taught nothing: their squared distance {which} is at least {distance:.3g} at the start and "
        f"at the end, and exp(-d²) leaves no gradient beyond about {limit:.0f}; use {remedy}."
    )


_LARGE_BATCH = 2**28  # bytes; larger batches are not read ahead, so that main memory holds only one
_GPU_NUMBERS = 2**27  # numbers that are pooled at once after training, enough to keep a GPU busy


def squared_distances(pooled: Pooled, mu: Tensor | None = None) -> Tensor:
    """Return d²_nj = (h_nj - μ_j)² `[N, M]`; μ is the prototype of the same sequences unless it is given."""
    return (pooled.value - (compute_prototype(pooled) if mu is None else mu)).square()


def measure_spread(pooled: Pooled) -> tuple[Tensor, Tensor]:
    """Return the mean d² per head to the prototype of the same sequences, and that prototype, both `[M]`.

    Equal to `squared_distances(pooled).mean(0)` and `compute_prototype(pooled)`, for nonempty sequences.
    """
    distances, mu = _Spread.apply(*pooled)  # type: ignore[no-untyped-call]
    return distances, mu


class _Spread(torch.autograd.Function):
    """With p_n = softmax_n(L), μ = Σ p h and e = h - μ: dμ/dh = p, dμ/dL = p e, and d(mean e²)/dμ = -2 mean e."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, log_mass: Tensor) -> Any:
        weights = compute_shares(log_mass)
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
        assert through_mu is not None, "autograd calls this only if the loss depends on an output"
        weighted = weights * through_mu
        of_value = weighted if against is None else torch.addcmul(weighted, deviations, against, value=-1)
        return of_value, weighted * deviations


def log_norms(queries: Tensor) -> Tensor:
    """Return log |W_j|²_F per head."""
    result: Tensor = _LogNorms.apply(queries)  # type: ignore[no-untyped-call]
    return result


class _LogNorms(torch.autograd.Function):
    """`log_norms`, with the gradient 2 W_j / |W_j|²."""

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


def compute_regularizer(queries: Tensor, regularizer: Regularizer) -> Tensor:
    """Return the term that keeps the heads from vanishing, to be maximised: one number for all heads.

    "norm" is the paper's Σ_j log |W_j|². It treats each head alone, so that all heads drift to the direction of least
    variance and coincide in the end. "logdet" is the log-determinant of the Gram matrix of the flattened heads. It
    equals "norm" for orthogonal heads and is -inf if two heads coincide, so it also keeps heads apart.
    """
    if regularizer == "norm":
        return log_norms(queries).sum()
    volume: Tensor = _LogVolume.apply(queries.flatten(1))  # type: ignore[no-untyped-call]
    return volume


class _LogVolume(torch.autograd.Function):
    """log det F Fᵀ of `F [M, K]`, with the gradient 2 (F Fᵀ)⁻¹ F."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor) -> Any:
        wide = flat.double()  # because a Gram matrix has the squared condition number
        root, pivot = torch.linalg.cholesky_ex(wide @ wide.T)  # `cholesky` would wait for the GPU
        flawed = pivot != 0  # heads coincide: there is no gradient, and the next check of the loss ends the fit
        ctx.save_for_backward(flat, root.masked_fill_(flawed, torch.nan))
        volume = 2 * root.diagonal().log().sum()
        return torch.where(flawed, -torch.inf, volume).to(flat.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        flat, root = ctx.saved_tensors
        return (2 * grad) * (torch.cholesky_inverse(root).to(flat.dtype) @ flat)


def log1mexp(x: Tensor) -> Tensor:
    """Return log(1 - exp(-x)) for x >= 0, accurate at both ends; x = 0 counts as the smallest positive number."""
    result: Tensor = _Log1mexp.apply(x)  # type: ignore[no-untyped-call]
    return result


class _Log1mexp(torch.autograd.Function):
    """`log1mexp`, with the derivative 1 / (exp(x) - 1)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        x = x.clamp_min(torch.finfo(x.dtype).tiny)
        return torch.where(x < math.log(2), torch.log(-torch.expm1(-x)), torch.log1p(-torch.exp(-x)))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        # a distance of 0 has no direction to move in
        return torch.where(x >= torch.finfo(x.dtype).tiny, grad / torch.expm1(x), 0.0)


def outlier_loss(distances: Tensor, reduction: HeadReduction) -> Tensor:
    """Return the mean over AUX sequences of -log(1 - exp(-d²)), which is small if their d² are large.

    The gradient vanishes with exp(-d²), so a training must begin with d² of order 1, by its start or by the mean over
    heads.
    """
    return -log1mexp(reduce_heads(distances, reduction)).mean()


def reduce_heads(distances: Tensor, reduction: HeadReduction) -> Tensor:
    """Return d² `[N]` per sequence, the mean or the sum over heads."""
    return distances.mean(1) if reduction == "mean" else distances.sum(1)


def estimate_batch_bytes(source: TokenSource, recipe: Recipe) -> int:
    """Return the mean size of a batch of `source` in bytes."""
    tokens = float(source.lengths.double().mean()) * min(recipe.batch_size, len(source))
    return round(tokens) * source.dim * source.dtype.itemsize


class Training:
    """The loss as a function of the step; the first step that is asked for decides where the batches start."""

    def __init__(
        self,
        source: TokenSource,
        aux: TokenSource | None,
        recipe: Recipe,
        start: Start,
        weights: Tensor,
        seed: int,
    ) -> None:
        self._recipe, self._start, self._weights = recipe, start, weights
        self._sources, self._seed = [source] if aux is None else [source, aux], seed
        self._aux_share = len(aux) / (len(source) + len(aux)) if aux is not None else 0.0
        self._batches: Generator[tuple[list[TokenBatch], int]] | None = None

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the loss of a step and its mean d² per head."""
        recipe = self._recipe
        if self._batches is None:
            self._batches = self._read(step)
        inside, *outside = self._pool(*next(self._batches), self._weights, step)
        per_head, mu = measure_spread(inside)  # μ of the ID batch, with gradient through it: Algorithm 1
        loss = per_head.sum()
        if not outside or recipe.regularized_aux:
            loss = loss - compute_regularizer(self._weights, recipe.regularizer)
        if recipe.head_reduction == "mean":
            loss = loss / len(self._weights)
        for pooled in outside:
            outliers = recipe.aux_weight * outlier_loss(squared_distances(pooled, mu), recipe.head_reduction)
            if not recipe.balanced_aux:  # the paper divides both sums by N + N'; batches give their means
                loss, outliers = (1 - self._aux_share) * loss, self._aux_share * outliers
            loss = loss + outliers
        return loss, per_head.detach().mean()

    @torch.no_grad()
    def measure_aux_distance(self) -> Tensor | None:
        """Return -log of the mean of exp(-d²) over AUX sequences, in which the nearest sequences dominate.

        This is how far away AUX sequences are to the loss: at the start or now, whichever is nearer. It is measured on
        the first batch of the fit, so that it does not depend on interruptions. None if the loss ignores AUX sequences.
        """
        if len(self._sources) < 2 or self._recipe.aux_weight == 0:
            return None
        with contextlib.closing(self._read(0)) as reading:
            first = next(reading)
        found = []
        for weights, step in ((self._start.weights, 0), (self._weights, self._recipe.steps)):
            inside, outside = self._pool(*first, weights, step)
            distances = reduce_heads(squared_distances(outside, compute_prototype(inside)), self._recipe.head_reduction)
            found.append(math.log(len(distances)) - torch.logsumexp(-distances, 0))
        return torch.minimum(*found)

    def close(self) -> None:
        """Stop reading ahead."""
        if self._batches is not None:
            self._batches.close()

    def _pool(self, batches: Sequence[TokenBatch], inside: int, weights: Tensor, step: int) -> list[Pooled]:
        """Return the pools of the ID batch and, if there is one, of the AUX batch."""
        recipe = self._recipe
        beta = self._start.beta * warm_up(step, recipe.warm_up * recipe.steps)
        queries = self._start.queries(weights)
        pools = [
            attention_pool(batch, queries, beta, recipe.similarity, self._start.preprocessing) for batch in batches
        ]
        if len(pools) < len(self._sources):  # one batch holds both kinds
            (both,) = pools
            value, log_mass = (torch.split(x, [inside, len(x) - inside]) for x in both)
            pools = [Pooled(*part) for part in zip(value, log_mass, strict=True)]
        return pools

    def _read(self, first: int) -> Generator[tuple[list[TokenBatch], int]]:
        """Yield the batches of each step from `first` on, and the number of ID sequences in the first batch."""
        orders = [self._shuffle(source, self._seed + number, first) for number, source in enumerate(self._sources)]
        if all(isinstance(source, Resident) for source in self._sources):
            for indices in zip(*orders, strict=True):
                yield gather_sequences(self._sources, indices), len(indices[0])
            return
        streams = [self._stream(source, order) for source, order in zip(self._sources, orders, strict=True)]
        try:
            for batches in zip(*streams, strict=True):
                yield list(batches), len(batches[0])
        finally:
            for stream in streams:
                if isinstance(stream, Generator):
                    stream.close()

    def _shuffle(self, source: TokenSource, seed: int, first: int) -> Iterator[Tensor]:
        recipe = self._recipe
        budget = None if recipe.batch_elements is None else max(1, recipe.batch_elements // source.dim)
        return shuffle_batches(source, seed=seed, batch_size=recipe.batch_size, token_budget=budget, start=first)

    def _stream(self, source: TokenSource, order: Iterator[Tensor]) -> Iterator[TokenBatch]:
        batches, device = map(source.select, order), self._weights.device
        small = estimate_batch_bytes(source, self._recipe) <= _LARGE_BATCH
        return move_to_device(batches, device) if small or device.type == "cuda" else batches


class CorpusPool(NamedTuple):
    """Statistics of the pooled values h per head over the training corpus.

    Attributes:
        prototype: attention-weighted mean of h `[M]`, float64.
        mean: plain mean of h `[M]`, float64.
        variance: variance of h `[M]`, float64.
        sample: h `[sampled sequences, M]`.
    """

    prototype: Tensor
    mean: Tensor
    variance: Tensor
    sample: Tensor


@torch.no_grad()
def pool_corpus(
    source: TokenSource, queries: Tensor, beta: float, recipe: Recipe, start: Start, sample: Tensor | None = None
) -> CorpusPool:
    """Return statistics of h after one streaming pass; the prototype is merged batch by batch (Algorithm 2).

    `sample` holds the indices, in ascending order, of the sequences whose pooled values are kept.
    """
    chosen = torch.empty(0, dtype=torch.int64) if sample is None else sample
    total: Pooled | None = None
    values, kept, first = [], [], 0
    with progress_bar(len(source), "prototype", "seq") as progress:
        for batch in _read_all(source, queries.device):
            pooled = attention_pool(batch, queries, beta, recipe.similarity, start.preprocessing)
            part = merge_sequences(Pooled(*(x.double() for x in pooled)))
            total = part if total is None else merge(total, part)
            h = pooled.value.double()
            values.append((len(batch), h.mean(0), h.var(0, correction=0)))
            own = chosen[(chosen >= first) & (chosen < first + len(batch))] - first
            kept.append(pooled.value[upload(own, queries.device)])
            first += len(batch)
            progress.update(len(batch))
    assert total is not None, "fit refuses a source without sequences"
    shares = torch.tensor([n for n, _, _ in values], dtype=torch.float64, device=queries.device)[:, None] / len(source)
    means = torch.stack([m for _, m, _ in values])
    mean = (shares * means).sum(0)
    variance = (shares * (torch.stack([v for _, _, v in values]) + (means - mean).square())).sum(0)
    return CorpusPool(total.value, mean, variance, torch.cat(kept))


def _read_all(source: TokenSource, device: torch.device) -> Iterator[TokenBatch]:
    """Return all sequences in order, in batches of a size that suits the device."""
    if device.type != "cuda":
        return source.batches(token_budget(source.dim))
    batches = source.batches(max(1, _GPU_NUMBERS // source.dim))
    return batches if isinstance(source, Resident) else move_to_device(batches, device)
