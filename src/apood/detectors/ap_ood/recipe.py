"""The recipes of AP-OOD, and the start of training that a recipe asks for: tokens' preprocessing, weights, beta."""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from apood.detectors.shared.mean_pooling import EIGENVALUE_FLOOR, compute_moments, inverse_root
from apood.pooling import Preprocessing, Similarity, check_beta
from apood.pooling.algebra import similarities_and_logits
from apood.support.checks import check_choice, check_integer, check_number
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch
from apood.tokens.source import TokenSource

__all__ = [
    "HeadReduction",
    "Recipe",
    "RecipeName",
    "Regularizer",
    "ScoreName",
    "Start",
    "has_sink",
    "prepare_start",
    "resolve",
]

RecipeName = Literal["robust", "paper"]
ScoreName = Literal["sum", "student", "min"]
Regularizer = Literal["logdet", "norm"]
HeadReduction = Literal["mean", "sum"]


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a fit of AP-OOD apart from the data and the seed."""

    queries: int
    regularizer: Regularizer
    head_reduction: HeadReduction
    unit_tokens: bool
    steps: int
    batch_size: int
    learning_rate: float
    heads: int | None = None  # None: set by `queries_per_dim`
    beta: float | None = None  # None: set by `temperature`
    similarity: Similarity = "dot"

    queries_per_dim: int = 1  # 1: M T = D, as many parameters as a covariance matrix has
    adapted: bool = False  # to the data: sinks skipped, tokens centred and whitened, start from a rotation
    temperature: float | None = None  # beta in units of the spread of the similarities; None: beta = 1/√D
    warm_up: float = 0.0  # share of the steps over which beta rises from 0
    batch_elements: int | None = None  # cuts a batch of long sequences, to bound memory
    mean_prototype: bool = False  # score against the plain mean of h, not the attention-weighted one
    balanced_aux: bool = False  # with AUX: keep the regulariser, and weigh the mean of AUX like that of ID


ROBUST = Recipe(
    queries=2,
    regularizer="logdet",
    head_reduction="mean",
    unit_tokens=True,
    steps=300,
    batch_size=64,
    learning_rate=0.001,
    queries_per_dim=2,  # with T = 2 that is M = D: fewer heads span fewer directions of the mean than Mahalanobis sees
    adapted=True,
    temperature=0.7,
    warm_up=0.5,
    batch_elements=2**27,
    mean_prototype=True,
    balanced_aux=True,
)

PAPER = Recipe(
    queries=1,
    regularizer="norm",
    head_reduction="sum",
    unit_tokens=False,
    steps=1000,
    batch_size=512,
    learning_rate=0.01,
)


def resolve(recipe: RecipeName, **arguments: Any) -> Recipe:
    """The recipe with every argument that is not None in its place, checked."""
    check_choice("recipe", recipe, get_args(RecipeName))
    base = ROBUST if recipe == "robust" else PAPER
    chosen = replace(base, **{name: value for name, value in arguments.items() if value is not None})
    check_choice("similarity", chosen.similarity, get_args(Similarity))
    check_choice("regularizer", chosen.regularizer, get_args(Regularizer))
    check_choice("head_reduction", chosen.head_reduction, get_args(HeadReduction))
    for name in ("heads", "queries", "steps", "batch_size"):
        if getattr(chosen, name) is not None:
            check_integer(name, getattr(chosen, name), least=1)
    if chosen.beta is not None:
        check_beta(chosen.beta)
    if chosen.temperature is not None:
        check_number("temperature", chosen.temperature, least=0)
    check_number("learning_rate", chosen.learning_rate, above=0)
    return chosen


_PROBE_SEQUENCES, _PROBE_ELEMENTS = 256, 2**24  # that a spread is measured on, at most
_SINK_SPREAD = 0.1  # a first token that varies less than this share of all tokens carries nothing


@dataclass(frozen=True)
class Start:
    """The tokens are looked at in `preprocessing`; weights W stand for the queries W P there, with P the `whitening`.

    Whitening the tokens or the queries is the same thing for dot products, (P z)ᵀ w = zᵀ (Pᵀ w), so
    the whitened space costs nothing: one learning rate then fits all backbones.
    """

    preprocessing: Preprocessing
    whitening: Tensor | None
    weights: Tensor
    beta: float

    def queries(self, weights: Tensor) -> Tensor:
        """The queries in the preprocessing that `weights` stand for."""
        return weights if self.whitening is None else weights @ self.whitening


def has_sink(source: TokenSource, unit: bool, generator: torch.Generator) -> bool:
    """Whether the first token is nearly the same in all sequences, as in causal language models.

    Such a token takes a share 1/S of a mean, but all the attention of every query that points its way.
    """
    tokens = _probe(source, generator)
    if len(tokens) < 2 or float((tokens.lengths > 1).double().mean()) < 0.5:
        return False
    z = Preprocessing(unit).apply(tokens.values.float())
    first = z[tokens.offsets[:-1].to(z.device)]
    return float(first.var(0).sum()) < _SINK_SPREAD * float(z.var(0).sum())


def prepare_start(source: TokenSource, recipe: Recipe, generator: torch.Generator, device: torch.device) -> Start:
    """The start that `recipe` asks for, on `device`."""
    dim = source.dim
    auto = min(dim, max(1, recipe.queries_per_dim * dim // recipe.queries))
    shape = (recipe.heads or auto, recipe.queries, dim)
    if recipe.regularizer == "logdet" and shape[0] > shape[1] * dim:
        raise InputError(
            f"regularizer='logdet' keeps heads linearly independent, so there can be at most queries * D = "
            f"{shape[1] * dim} of them, got {shape[0]}."
        )
    whitening = None
    preprocessing = Preprocessing(recipe.unit_tokens)
    if recipe.adapted:
        _, mean, covariance = compute_moments(source, "tokens" if recipe.unit_tokens else "none")
        preprocessing = Preprocessing(recipe.unit_tokens, mean.float().to(device))
        if recipe.similarity == "dot":
            whitening = inverse_root(covariance, EIGENVALUE_FLOOR).float().to(device)
            weights = _rotations(shape, generator)
        else:  # a euclidean query attends to its neighbourhood, so it starts where tokens are
            tokens = preprocessing.apply(_probe(source, generator).values.float().to(device)).cpu()
            weights = tokens[torch.randint(len(tokens), shape[:2], generator=generator)]
    else:
        weights = torch.randn(shape, generator=generator)
    weights = weights.to(device)
    start = Start(preprocessing, whitening, weights, recipe.beta or 0.0)
    if recipe.beta is not None:
        return start
    return Start(preprocessing, whitening, weights, _scale_free_beta(source, recipe, start, generator))


def _rotations(shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """As many rows of random orthogonal matrices as there are queries.

    In the whitened space these are the Mahalanobis distance when there are D of them.
    """
    heads, queries, dim = shape
    count = -(-heads * queries // dim)
    rows = [torch.linalg.qr(torch.randn(dim, dim, generator=generator)).Q for _ in range(count)]
    return torch.cat(rows)[: heads * queries].reshape(shape)


def _scale_free_beta(source: TokenSource, recipe: Recipe, start: Start, generator: torch.Generator) -> float:
    if recipe.temperature is None:
        return float(source.dim**-0.5)
    tokens = start.preprocessing.apply(_probe(source, generator).values.float().to(start.weights.device))
    some = start.weights.flatten(0, 1)[: source.dim].unsqueeze(0)  # D queries say enough of how all of them spread
    _, logits = similarities_and_logits(tokens, start.queries(some), 1.0, recipe.similarity)
    spread = float(logits.std())
    return recipe.temperature / spread if spread > 0 else 0.0


def _probe(source: TokenSource, generator: torch.Generator) -> TokenBatch:
    """Some random sequences; fewer of them when they are long, but always one."""
    chosen = torch.randperm(len(source), generator=generator)[:_PROBE_SEQUENCES]
    fits = source.lengths[chosen].cumsum(0) * source.dim <= _PROBE_ELEMENTS
    fits[0] = True
    return source.select(chosen[fits].sort().values)
