"""The objective of AP-OOD, step by step, and the pass over the corpus that follows."""

import contextlib
import math
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from apood.detectors.ap_ood.loss import outlier_loss, over_heads, regularization, spread, squared_distances
from apood.detectors.ap_ood.recipe import Recipe
from apood.detectors.ap_ood.start import Start
from apood.fitting.loop import warm_up
from apood.pooling import Pooled, attention_pool, merge, pool_of_pools, prototype
from apood.support.progress import bar
from apood.tokens.batch import TokenBatch
from apood.tokens.loader import on_device, shuffled, upload
from apood.tokens.resident import Resident, gathered
from apood.tokens.source import TokenSource, token_budget

__all__ = ["CorpusPool", "Training", "batch_bytes", "pool_corpus"]

_LARGE_BATCH = 2**28  # bytes; of larger ones there is no second in main memory, ready before it is asked for
_GPU_NUMBERS = 2**27  # of tokens that are pooled at once after training: enough for a GPU to be busy


def batch_bytes(source: TokenSource, recipe: Recipe) -> int:
    """How large a batch of `source` is on average."""
    tokens = float(source.lengths.double().mean()) * min(recipe.batch_size, len(source))
    return round(tokens) * source.dim * source.dtype.itemsize


class Training:
    """The loss of a step as a function of its number; batches are drawn from where the number starts."""

    def __init__(
        self,
        source: TokenSource,
        aux: TokenSource | None,
        recipe: Recipe,
        start: Start,
        weights: Tensor,
        aux_weight: float,
        seed: int,
    ) -> None:
        self._recipe, self._start, self._weights, self._aux_weight = recipe, start, weights, aux_weight
        self._sources, self._seed = [source] if aux is None else [source, aux], seed
        self._aux_share = len(aux) / (len(source) + len(aux)) if aux is not None else 0.0
        self._batches: Generator[tuple[list[TokenBatch], int]] | None = None

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """The loss of a step and its mean d² a head."""
        recipe = self._recipe
        if self._batches is None:
            self._batches = self._read(step)
        inside, *outside = self._pools(*next(self._batches), self._weights, step)
        per_head, mu = spread(inside)  # μ of the ID batch alone, with gradient: Algorithm 1
        loss = per_head.sum()
        if not outside or recipe.balanced_aux:
            loss = loss - regularization(self._weights, recipe.regularizer)
        if recipe.head_reduction == "mean":
            loss = loss / len(self._weights)
        for pooled in outside:
            outliers = self._aux_weight * outlier_loss(squared_distances(pooled, mu), recipe.head_reduction)
            if not recipe.balanced_aux:  # both sums over N + N', here from batches of either kind
                loss, outliers = (1 - self._aux_share) * loss, self._aux_share * outliers
            loss = loss + outliers
        return loss, per_head.detach().mean()

    @torch.no_grad()
    def aux_distance(self) -> Tensor | None:
        """-log of the mean exp(-d²) of the AUX sequences, of whose d² the nearest count: how near the loss sees them.

        At the start or now, wherever they are nearer, over the first batch of the fit, however the fit went on: what
        it says does not depend on interruptions. None if the loss does not look at AUX sequences.
        """
        if len(self._sources) < 2 or self._aux_weight == 0:
            return None
        with contextlib.closing(self._read(0)) as reading:
            first = next(reading)
        found = []
        for weights, step in ((self._start.weights, 0), (self._weights, self._recipe.steps)):
            inside, outside = self._pools(*first, weights, step)
            distances = over_heads(squared_distances(outside, prototype(inside)), self._recipe.head_reduction)
            found.append(math.log(len(distances)) - torch.logsumexp(-distances, 0))
        return torch.minimum(*found)

    def close(self) -> None:
        """Stops reading ahead."""
        if self._batches is not None:
            self._batches.close()

    def _pools(self, batches: Sequence[TokenBatch], inside: int, weights: Tensor, step: int) -> list[Pooled]:
        """Of the ID batch and, where there are some, of the AUX batch."""
        recipe = self._recipe
        beta = self._start.beta * warm_up(step, recipe.warm_up * recipe.steps)
        queries = self._start.queries(weights)
        pools = [attention_pool(batch, queries, beta, recipe.similarity, self._start.frame) for batch in batches]
        if len(pools) < len(self._sources):  # both in one
            (both,) = pools
            value, log_mass = (torch.split(x, [inside, len(x) - inside]) for x in both)
            pools = [Pooled(*part) for part in zip(value, log_mass, strict=True)]
        return pools

    def _read(self, first: int) -> Generator[tuple[list[TokenBatch], int]]:
        """The batches of each step from `first` on, and how many sequences of the first one are ID."""
        orders = [self._order(source, self._seed + number, first) for number, source in enumerate(self._sources)]
        if all(isinstance(source, Resident) for source in self._sources):
            for indices in zip(*orders, strict=True):
                yield gathered(self._sources, indices), len(indices[0])
            return
        streams = [self._stream(source, order) for source, order in zip(self._sources, orders, strict=True)]
        try:
            for batches in zip(*streams, strict=True):
                yield list(batches), len(batches[0])
        finally:
            for stream in streams:
                if isinstance(stream, Generator):
                    stream.close()

    def _order(self, source: TokenSource, seed: int, first: int) -> Iterator[Tensor]:
        recipe = self._recipe
        budget = None if recipe.batch_elements is None else max(1, recipe.batch_elements // source.dim)
        return shuffled(source, seed=seed, batch_size=recipe.batch_size, token_budget=budget, start=first)

    def _stream(self, source: TokenSource, order: Iterator[Tensor]) -> Iterator[TokenBatch]:
        batches, device = map(source.select, order), self._weights.device
        small = batch_bytes(source, self._recipe) <= _LARGE_BATCH
        return on_device(batches, device) if small or device.type == "cuda" else batches


class CorpusPool(NamedTuple):
    """What a pass over the training corpus says of each head: prototype, mean and variance of h, and some of the h."""

    prototype: Tensor
    mean: Tensor
    variance: Tensor
    sample: Tensor


@torch.no_grad()
def pool_corpus(
    source: TokenSource, queries: Tensor, beta: float, recipe: Recipe, start: Start, sample: Tensor | None = None
) -> CorpusPool:
    """Streams over the corpus once; the prototype is merged batch by batch (Algorithm 2).

    `sample` are ascending numbers of the sequences whose pooled values are kept.
    """
    chosen = torch.empty(0, dtype=torch.int64) if sample is None else sample
    total: Pooled | None = None
    values, kept, first = [], [], 0
    with bar(len(source), "prototype", "seq") as progress:
        for batch in _whole(source, queries.device):
            pooled = attention_pool(batch, queries, beta, recipe.similarity, start.frame)
            part = pool_of_pools(Pooled(*(x.double() for x in pooled)))
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


def _whole(source: TokenSource, device: torch.device) -> Iterator[TokenBatch]:
    """All sequences in order, in batches of a size that suits the device."""
    if device.type != "cuda":
        return source.batches(token_budget(source.dim))
    batches = source.batches(max(1, _GPU_NUMBERS // source.dim))
    return batches if isinstance(source, Resident) else on_device(batches, device)
