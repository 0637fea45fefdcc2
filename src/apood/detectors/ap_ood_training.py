"""The objective of AP-OOD, step by step, and the pass over the corpus that follows."""

from collections.abc import Generator, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from apood.detectors.ap_ood_loss import outlier_loss, regularization, squared_distances
from apood.detectors.ap_ood_recipe import Recipe
from apood.detectors.ap_ood_start import Start
from apood.fitting.loop import warm_up
from apood.pooling import Pooled, attention_pool, merge, pool_of_pools, prototype
from apood.support.progress import bar
from apood.tokens.batch import TokenBatch
from apood.tokens.loader import prefetch, shuffled
from apood.tokens.source import TokenSource, token_budget

__all__ = ["CorpusPool", "Training", "pool_corpus"]

_LARGE_BATCH = 2**28  # bytes; of larger ones there is no second in memory, ready before it is asked for


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
        self._sources = [(source, seed)] + ([(aux, seed + 1)] if aux is not None else [])
        self._aux_share = len(aux) / (len(source) + len(aux)) if aux is not None else 0.0
        self._batches: list[Iterator[TokenBatch]] | None = None

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """The loss of a step and its mean d² a head."""
        if self._batches is None:
            self._batches = [self._stream(source, seed, step) for source, seed in self._sources]
        recipe = self._recipe
        beta = self._start.beta * warm_up(step, recipe.warm_up * recipe.steps)
        queries = self._start.queries(self._weights)
        # moved once, because the backward pass reads the tokens again
        pools = [
            attention_pool(next(batches).to(queries.device), queries, beta, recipe.similarity, self._start.frame)
            for batches in self._batches
        ]
        mu = prototype(pools[0])  # of the ID batch alone, with gradient: Algorithm 1
        distances = squared_distances(pools[0], mu)
        per_head = distances.mean(0)
        loss = self._over_heads(per_head.sum())
        if len(pools) == 1:
            loss = loss - self._over_heads(regularization(self._weights, recipe.regularizer))
        else:
            outliers = self._aux_weight * outlier_loss(squared_distances(pools[1], mu), recipe.head_reduction)
            if recipe.balanced_aux:
                loss = loss - self._over_heads(regularization(self._weights, recipe.regularizer)) + outliers
            else:  # both sums over N + N', here from batches of either kind
                loss = (1 - self._aux_share) * loss + self._aux_share * outliers
        return loss, per_head.mean()

    def close(self) -> None:
        """Stops reading ahead."""
        for batches in self._batches or []:
            if isinstance(batches, Generator):
                batches.close()

    def _over_heads(self, total: Tensor) -> Tensor:
        return total / len(self._weights) if self._recipe.head_reduction == "mean" else total

    def _stream(self, source: TokenSource, seed: int, first: int) -> Iterator[TokenBatch]:
        recipe = self._recipe
        budget = None if recipe.batch_elements is None else max(1, recipe.batch_elements // source.dim)
        chosen = shuffled(source, seed=seed, batch_size=recipe.batch_size, token_budget=budget, start=first)
        batches = map(source.select, chosen)
        tokens = float(source.lengths.double().mean()) * min(recipe.batch_size, len(source))
        small = tokens * source.dim * source.dtype.itemsize <= _LARGE_BATCH
        return prefetch(batches) if small else batches


class CorpusPool(NamedTuple):
    """What a pass over the training corpus says of each head: prototype, and mean and variance of h."""

    prototype: Tensor
    mean: Tensor
    variance: Tensor


@torch.no_grad()
def pool_corpus(source: TokenSource, queries: Tensor, beta: float, recipe: Recipe, start: Start) -> CorpusPool:
    """Streams over the corpus once; the prototype is merged batch by batch (Algorithm 2)."""
    total: Pooled | None = None
    values = []
    with bar(len(source), "prototype", "seq") as progress:
        for batch in source.batches(token_budget(source.dim)):
            pooled = attention_pool(batch, queries, beta, recipe.similarity, start.frame)
            part = pool_of_pools(Pooled(*(x.double() for x in pooled)))
            total = part if total is None else merge(total, part)
            h = pooled.value.double()
            values.append((len(batch), h.mean(0), h.var(0, correction=0)))
            progress.update(len(batch))
    assert total is not None, "fit refuses a source without sequences"
    shares = torch.tensor([n for n, _, _ in values], dtype=torch.float64, device=queries.device)[:, None] / len(source)
    means = torch.stack([m for _, m, _ in values])
    mean = (shares * means).sum(0)
    variance = (shares * (torch.stack([v for _, _, v in values]) + (means - mean).square())).sum(0)
    return CorpusPool(total.value, mean, variance)
