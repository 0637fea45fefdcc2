"""The recipes of AP-OOD, and the start of a training by a recipe: preprocessing of the tokens, weights, beta."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from apood.detectors.shared.mean_pooling import EIGENVALUE_FLOOR, compute_moments, inverse_root, shrink
from apood.detectors.shared.sinks import draw_probe
from apood.pooling import Preprocessing, Similarity, check_beta
from apood.pooling.algebra import similarities_and_logits
from apood.support.checks import check_choice, check_integer, check_number
from apood.support.errors import InputError
from apood.tokens.source import TokenSource

__all__ = [
    "HeadReduction",
    "Recipe",
    "RecipeName",
    "Regularizer",
    "ScoreName",
    "Start",
    "StartName",
    "count_weights",
    "prepare_start",
    "resolve",
]

RecipeName = Literal["robust", "paper", "reference"]
ScoreName = Literal["sum", "student", "min"]
Regularizer = Literal["logdet", "norm"]
HeadReduction = Literal["mean", "sum"]
StartName = Literal["mahalanobis", "normal", "scaled"]

_SHARPNESS = 0.7, 3.0  # least and most that the length of the sequences gives
_LEAST_HEADS = 32  # or D, if that is smaller: fewer see too little of tokens in few dimensions
_SHRINKAGE = 0.1  # of the whitening with very few sequences


@dataclass(frozen=True)
class Recipe:
    """All settings of a fit of AP-OOD, apart from the seed.

    Attributes:
        queries: T, queries per head.
        regularizer: "logdet" or "norm"; see `compute_regularizer`.
        head_reduction: how the loss reduces d² over heads.
        unit_tokens: whether tokens are scaled to length 1.
        steps: gradient steps.
        batch_size: sequences per step.
        learning_rate: peak learning rate of Adam.
        start: where the weights start. "mahalanobis": rows of random rotations of centred and whitened tokens, which is
            the Mahalanobis distance if T = 1 and beta = 0; "normal": N(0, 1); "scaled": N(0, 1/D).
        heads: M; None for `queries_per_dim` * D // queries, at most D.
        beta: inverse temperature of the attention; None for the value that `sharpness` gives.
        similarity: "dot" or "euclidean".
        queries_per_dim: queries of all heads, divided by D. With 1, a detector has as many parameters as a covariance.
        adapted: whether sinks are skipped, and the distances of long sequences corrected.
        score: how the score reduces d² over heads.
        sharpness: beta times the standard deviation of the similarities at the start; None for beta = 1/√D.
        warm_up: share of the steps during which beta rises from 0.
        batch_elements: most numbers in a batch, which limits the memory for long sequences; None for no limit.
        mean_prototype: whether the score uses the plain mean of h as the prototype, not the attention-weighted one.
        aux_weight: λ, the weight of AUX sequences in the loss.
        balanced_aux: whether the mean over AUX weighs like the mean over ID, not by the number of sequences.
        regularized_aux: whether a loss with AUX keeps the regulariser.
        pools_logits: whether a head pools the logits beta * a, not the similarities a.
    """

    queries: int
    regularizer: Regularizer
    head_reduction: HeadReduction
    unit_tokens: bool
    steps: int
    batch_size: int
    learning_rate: float
    start: StartName
    heads: int | None = None
    beta: float | None = None
    similarity: Similarity = "dot"
    queries_per_dim: int = 1
    adapted: bool = False
    score: ScoreName = "sum"
    sharpness: float | Literal["length"] | None = None
    warm_up: float = 0.0
    batch_elements: int | None = None
    mean_prototype: bool = False
    aux_weight: float = 1.0
    balanced_aux: bool = False
    regularized_aux: bool = False
    pools_logits: bool = False


ROBUST = Recipe(
    queries=8,
    regularizer="logdet",
    head_reduction="mean",
    unit_tokens=True,
    steps=300,
    batch_size=64,
    learning_rate=0.001,
    start="mahalanobis",
    queries_per_dim=2,
    adapted=True,
    score="student",
    sharpness="length",
    warm_up=0.5,
    batch_elements=2**27,
    mean_prototype=True,
    balanced_aux=True,
    regularized_aux=True,
)

PAPER = Recipe(
    queries=1,
    regularizer="norm",
    head_reduction="sum",
    unit_tokens=False,
    steps=1000,
    batch_size=512,
    learning_rate=0.01,
    start="normal",
)

REFERENCE = replace(PAPER, head_reduction="mean", beta=1.0, aux_weight=10.0, balanced_aux=True, pools_logits=True)

_RECIPES = {"robust": ROBUST, "paper": PAPER, "reference": REFERENCE}
_WITH_AUX = _RECIPES | {"reference": replace(REFERENCE, start="scaled")}
_GPU_QUERIES = 16  # per head, and per dimension: eight times the work, for which a CPU has no time


def resolve(recipe: RecipeName, *, supervised: bool = False, on_gpu: bool = False, **arguments: Any) -> Recipe:
    """Return the recipe, in which every argument that is not None replaces a setting, after checking all settings.

    Args:
        recipe: name of the recipe.
        supervised: whether the fit has AUX sequences.
        on_gpu: whether the fit runs on a GPU, for which the robust recipe has more queries.
        **arguments: settings by name.
    """
    check_choice("recipe", recipe, get_args(RecipeName))
    given = {name: value for name, value in arguments.items() if value is not None}
    if "sharpness" in given:
        given.setdefault("beta", None)  # the sharpness gives it
    base = (_WITH_AUX if supervised else _RECIPES)[recipe]
    if on_gpu and base.adapted:
        base = replace(base, queries=_GPU_QUERIES, queries_per_dim=_GPU_QUERIES)
    chosen = replace(base, **given)
    check_choice("score", chosen.score, get_args(ScoreName))
    check_choice("similarity", chosen.similarity, get_args(Similarity))
    check_choice("regularizer", chosen.regularizer, get_args(Regularizer))
    check_choice("head_reduction", chosen.head_reduction, get_args(HeadReduction))
    for name in ("heads", "queries", "steps", "batch_size"):
        if getattr(chosen, name) is not None:
            check_integer(name, getattr(chosen, name), least=1)
    if chosen.beta is not None:
        check_beta(chosen.beta)
    if chosen.sharpness is not None and chosen.sharpness != "length":
        check_number("sharpness", chosen.sharpness, least=0)
    check_number("learning_rate", chosen.learning_rate, above=0)
    check_number("aux_weight", chosen.aux_weight, least=0)
    check_choice("start", chosen.start, get_args(StartName))
    _refuse_contradictions(chosen, recipe, given)
    return chosen


def _refuse_contradictions(chosen: Recipe, recipe: RecipeName, given: dict[str, Any]) -> None:
    """Raise `InputError` for settings that are allowed alone and mean nothing together."""
    if chosen.similarity == "euclidean":
        if chosen.pools_logits:
            raise InputError(
                f"recipe={recipe!r} pools beta times the dot products, so it has similarity='dot' only; "
                "use recipe='paper' or 'robust' for 'euclidean'."
            )
        if given.get("start") == "mahalanobis":
            raise InputError(
                "start='mahalanobis' is for similarity='dot': it whitens the tokens, which changes euclidean "
                "neighbourhoods; leave start out, or use 'normal' or 'scaled'."
            )
    if chosen.pools_logits and 0 in (chosen.beta, chosen.sharpness):
        raise InputError(
            f"recipe={recipe!r} pools beta times the dot products, and with beta = 0 they are all 0; "
            "use recipe='paper' or 'robust' for mean pooling."
        )


@dataclass(frozen=True)
class Start:
    """The start of a training.

    Weights W stand for the queries W P, with P the whitening. Whitening the tokens or the queries is the same for dot
    products, (P z)ᵀ w = zᵀ (Pᵀ w), so the whitened space costs nothing. In it one learning rate fits all backbones.

    Pooling the logits β a, with weights softmax(β a), is pooling the similarities of the queries β W at an inverse
    temperature of 1. So a recipe that does has that β, and β as a factor of the queries.

    Attributes:
        preprocessing: of the tokens: scaling to length 1, and centring.
        whitening: P `[D, D]`, or None.
        weights: W `[M, T, D]` before the first step.
        beta: inverse temperature of the attention after the warm-up.
        scale: factor of the queries.
    """

    preprocessing: Preprocessing
    whitening: Tensor | None
    weights: Tensor
    beta: float
    scale: float = 1.0

    def queries(self, weights: Tensor) -> Tensor:
        """Return the queries that `weights` stand for."""
        queries = weights if self.whitening is None else weights @ self.whitening
        return queries if self.scale == 1 else queries * self.scale


def count_weights(recipe: Recipe, dim: int) -> tuple[int, int, int]:
    """Return the shape of the weights: M, T and D."""
    least = _LEAST_HEADS if recipe.adapted else 1
    auto = min(dim, max(least, recipe.queries_per_dim * dim // recipe.queries))
    return recipe.heads or auto, recipe.queries, dim


def prepare_start(source: TokenSource, recipe: Recipe, generator: torch.Generator, device: torch.device) -> Start:
    """Return the start of a training by `recipe`, on `device`."""
    dim = source.dim
    shape = count_weights(recipe, dim)
    if recipe.regularizer == "logdet" and shape[0] > shape[1] * dim:
        raise InputError(
            f"regularizer='logdet' keeps heads linearly independent, so there can be at most queries * D = "
            f"{shape[1] * dim} of them, got {shape[0]}."
        )
    whitening = None
    preprocessing = Preprocessing(recipe.unit_tokens)
    if recipe.start == "mahalanobis":
        _, mean, covariance = compute_moments(source, "tokens" if recipe.unit_tokens else "none")
        preprocessing = Preprocessing(recipe.unit_tokens, mean.float().to(device))
        if recipe.similarity == "dot":
            whitening = (
                inverse_root(shrink(covariance, _choose_shrinkage(len(source), dim)), EIGENVALUE_FLOOR)
                .float()
                .to(device)
            )
            weights = _draw_rotations(shape, generator)
        else:  # a euclidean query attends to its neighbourhood, so it starts at a token
            tokens = preprocessing.apply(draw_probe(source, generator).values.float().to(device)).cpu()
            weights = tokens[torch.randint(len(tokens), shape[:2], generator=generator)]
    else:
        weights = torch.randn(shape, generator=generator) * (dim**-0.5 if recipe.start == "scaled" else 1.0)
    start = Start(preprocessing, whitening, weights.to(device), recipe.beta or 0.0)
    if recipe.beta is None:
        start = replace(start, beta=_choose_beta(source, recipe, start, generator))
    return replace(start, beta=1.0, scale=start.beta) if recipe.pools_logits else start


def _draw_rotations(shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Return rows of random orthogonal matrices, one per query; D of them are Mahalanobis in the whitened space."""
    heads, queries, dim = shape
    count = -(-heads * queries // dim)
    rows = [torch.linalg.qr(torch.randn(dim, dim, generator=generator)).Q for _ in range(count)]
    return torch.cat(rows)[: heads * queries].reshape(shape)


def _choose_beta(source: TokenSource, recipe: Recipe, start: Start, generator: torch.Generator) -> float:
    """Return beta so that the logits at the start have the standard deviation `recipe.sharpness`, or 1/√D."""
    if recipe.sharpness is None:
        return float(source.dim**-0.5)
    tokens = start.preprocessing.apply(draw_probe(source, generator).values.float().to(start.weights.device))
    some = start.weights.flatten(0, 1)[: source.dim].unsqueeze(0)  # D queries are enough to measure the spread
    _, logits = similarities_and_logits(tokens, start.queries(some), 1.0, recipe.similarity)
    spread = float(logits.std())
    sharpness = choose_sharpness(source.lengths) if recipe.sharpness == "length" else recipe.sharpness
    return sharpness / spread if spread > 0 else 0.0


def choose_sharpness(lengths: Tensor) -> float:
    """Return half the logarithm of the median length, within bounds: the more tokens, the sharper the attention.

    The largest of S similarities grows with log S, so more tokens need a larger contrast to single out a few. In short
    sequences, every token counts.
    """
    mildest, sharpest = _SHARPNESS
    return min(max(0.5 * math.log(max(1.0, float(lengths.double().median()))), mildest), sharpest)


def _choose_shrinkage(sequences: int, dim: int) -> float:
    """Return the share of the mean variance in the whitening: small, and less with more sequences."""
    return _SHRINKAGE * dim / (sequences + dim)
