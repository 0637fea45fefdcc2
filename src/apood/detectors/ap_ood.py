"""AP-OOD: attention pooling for out-of-distribution detection."""

from typing import Literal

import torch
from torch import Tensor

from apood.detectors.ap_ood_loss import log_norms, outlier_loss, regularization, squared_distances
from apood.detectors.ap_ood_recipe import (
    HeadReduction,
    Recipe,
    RecipeName,
    Regularizer,
    ScoreName,
    resolve,
)
from apood.detectors.base import Detector
from apood.detectors.mean_pooling import inverse_root, moments, token_budget
from apood.fitting.checkpoint import Checkpoint, fingerprint
from apood.fitting.loop import minimise, warm_up
from apood.pooling import Frame, Pooled, Similarity, attention_pool, merge, pool_of_pools
from apood.support.errors import InputError
from apood.support.progress import bar
from apood.tokens.batch import TokenBatch
from apood.tokens.loader import prefetch, shuffled
from apood.tokens.source import TokenSource

__all__ = ["APOOD"]

_EIGENVALUE_FLOOR = 1e-4
_PROBE = 256  # sequences that the spread of the similarities is measured on


class APOOD(Detector):
    """Attention pooling for OOD detection.
    """

    name = "ap-ood"
    uses_aux = True

    queries_: Tensor
    prototype_: Tensor
    log_norms_: Tensor
    origin_: Tensor
    beta_: float
    mean_distance_: float

    def __init__(
        self,
        heads: int | Literal["auto"] = "auto",
        queries: int | None = None,
        beta: float | None = None,
        similarity: Similarity | None = None,
        score: ScoreName = "sum",
        regularizer: Regularizer | None = None,
        recipe: RecipeName = "robust",
        normalize: Literal["tokens", "none"] | None = None,
        aux_weight: float = 1.0,
        head_reduction: HeadReduction | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        seed: int = 0,
        device: str = "auto",
        extra: dict | None = None,
    ) -> None:
        self.heads = heads
        self.queries = queries
        self.beta = beta
        self.similarity = similarity
        self.score = score
        self.regularizer = regularizer
        self.recipe = recipe
        self.normalize = normalize
        self.aux_weight = aux_weight
        self.head_reduction = head_reduction
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.seed = seed
        self.device = device
        self.extra = extra

    def _recipe(self) -> Recipe:
        return resolve(
            self.recipe,
            heads=None if self.heads == "auto" else self.heads,
            queries=self.queries,
            beta=self.beta,
            similarity=self.similarity,
            regularizer=self.regularizer,
            head_reduction=self.head_reduction,
            unit_tokens=None if self.normalize is None else self.normalize == "tokens",
            steps=self.steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            **(self.extra or {}),
        )

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:
        recipe = self._recipe()
        device = self._device()
        heads = recipe.heads or max(1, source.dim // recipe.queries)
        generator = torch.Generator().manual_seed(self.seed)
        shape = (heads, recipe.queries, source.dim)
        if recipe.whiten:
            statistics = moments(source, "tokens" if recipe.unit_tokens else "none")
            whitening = inverse_root(statistics.covariance, _EIGENVALUE_FLOOR).float().to(device)
            frame = Frame(recipe.unit_tokens, statistics.mean.float().to(device))
            start = torch.randn(shape, generator=generator)
            start = torch.linalg.qr(start.reshape(-1, source.dim).T).Q.T.reshape(shape) if heads*recipe.queries<=source.dim else start/source.dim**.5
        else:
            whitening = None
            frame = Frame(recipe.unit_tokens)
            start = torch.randn(shape, generator=generator)
        weights = start.to(device).contiguous().requires_grad_()
        def in_frame(w):
            return w if whitening is None else w @ whitening
        beta = recipe.beta
        if beta is None:
            if recipe.whiten:
                probe = source.select(torch.randperm(len(source), generator=generator)[:_PROBE].sort().values).to(device)
                a = frame.apply(probe.values.float()) @ in_frame(weights.detach()).reshape(-1, source.dim).T
                beta = recipe.temperature / float(a.std())
            else:
                beta = source.dim ** -0.5
        batches = prefetch(source.select(i) for i in shuffled(source, seed=self.seed, batch_size=recipe.batch_size))
        aux_batches = None if aux is None else prefetch(aux.select(i) for i in shuffled(aux, seed=self.seed + 1, batch_size=recipe.batch_size))
        share = 1.0 if aux is None else len(source) / (len(source) + len(aux))

        def objective(step: int) -> tuple[Tensor, Tensor]:
            b = beta * warm_up(step, recipe.warm_up * recipe.steps)
            queries = in_frame(weights)
            batch = next(batches)
            pooled = attention_pool(batch, queries, b, recipe.similarity, frame)
            mu = pool_of_pools(pooled).value
            d2 = squared_distances(pooled, mu)
            reduce = (lambda x: x / heads) if recipe.head_reduction == "mean" else (lambda x: x)
            loss = reduce(d2.mean(0).sum())
            if aux_batches is not None:
                far = squared_distances(attention_pool(next(aux_batches), queries, b, recipe.similarity, frame), mu)
                outl = outlier_loss(far, recipe.head_reduction)
                if recipe.regularize_supervised:
                    loss = loss + self.aux_weight * outl
                else:
                    loss = share * loss + (1 - share) * self.aux_weight * outl
            if aux_batches is None or recipe.regularize_supervised:
                loss = loss - reduce(regularization(weights, recipe.regularizer))
            return loss, d2.detach().mean()

        outcome = minimise(weights, objective, steps=recipe.steps, learning_rate=recipe.learning_rate, run="x", checkpoint=checkpoint, label="fit")
        with torch.no_grad():
            queries = in_frame(weights.detach())
            total=None; s=0; s2=0
            for batch in source.batches(token_budget(source.dim)):
                pooled = attention_pool(batch, queries, beta, recipe.similarity, frame)
                part = pool_of_pools(pooled); total = part if total is None else merge(total, part)
                s = s + pooled.value.double().sum(0); s2 = s2 + pooled.value.double().square().sum(0)
            n=len(source)
            self.mean_h_ = (s/n).float(); self.var_h_=(s2/n-(s/n)**2).float()
            self.softmax_mu_ = total.value
            self.prototype_ = self.mean_h_ if recipe.mean_prototype else total.value
        self.queries_ = queries; self.weights_=weights.detach()
        self.log_norms_ = log_norms(weights.detach())
        self.beta_ = beta; self.frame=frame
        self.mean_distance_ = float(((s2/n-(s/n)**2) + (s/n - self.prototype_.double())**2).mean())
        self.sim=recipe.similarity
        batches.close()

    def _device(self):
        return torch.device("cuda" if self.device == "auto" and torch.cuda.is_available() else "cpu" if self.device == "auto" else self.device)

    def _pool(self, tokens):
        return attention_pool(tokens, self.queries_, self.beta_, self.sim, self.frame)

    def _score(self, tokens: TokenBatch) -> Tensor:
        per_head = self.log_norms_ - (self._pool(tokens).value - self.prototype_).square()
        return per_head.sum(1) if self.score == "sum" else per_head.amin(1)
