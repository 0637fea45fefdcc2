"""What a recipe of AP-OOD sets, and what an argument overrides."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from apood.pooling import Similarity, check_beta
from apood.support.errors import InputError

__all__ = ["HeadReduction", "Recipe", "RecipeName", "Regularizer", "ScoreName", "resolve"]

RecipeName = Literal["robust", "paper"]
ScoreName = Literal["sum", "min"]
Regularizer = Literal["logdet", "norm"]
HeadReduction = Literal["mean", "sum"]


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a fit of AP-OOD apart from the data and the seed."""

    heads: int | None  # None: as many as match the parameters of a covariance matrix, M T = D
    queries: int
    beta: float | None  # None: `temperature` over the spread of the similarities at the start
    similarity: Similarity
    regularizer: Regularizer
    head_reduction: HeadReduction
    unit_tokens: bool
    steps: int
    batch_size: int
    learning_rate: float
    whiten: bool  # centre the tokens, whiten them and start from a rotation; else raw tokens and N(0, 1)
    warm_up: float  # share of the steps over which beta rises from 0
    mean_prototype: bool  # score against the plain mean of h instead of the attention-weighted one
    regularize_supervised: bool  # keep the regulariser with AUX data, and weigh both means alike

    temperature: float = 1.5


ROBUST = Recipe(
    heads=None,
    queries=2,
    beta=None,
    similarity="dot",
    regularizer="logdet",
    head_reduction="mean",
    unit_tokens=True,
    steps=300,
    batch_size=128,
    learning_rate=0.002,
    whiten=True,
    warm_up=0.5,
    mean_prototype=True,
    regularize_supervised=True,
)

PAPER = Recipe(
    heads=None,
    queries=1,
    beta=None,
    similarity="dot",
    regularizer="norm",
    head_reduction="sum",
    unit_tokens=False,
    steps=1000,
    batch_size=512,
    learning_rate=0.01,
    whiten=False,
    warm_up=0.0,
    mean_prototype=False,
    regularize_supervised=False,
)


def resolve(recipe: RecipeName, **arguments: Any) -> Recipe:
    """The recipe with every argument that is not None in its place, checked."""
    _one_of("recipe", recipe, get_args(RecipeName))
    base = ROBUST if recipe == "robust" else PAPER
    chosen = replace(base, **{name: value for name, value in arguments.items() if value is not None})
    _one_of("similarity", chosen.similarity, get_args(Similarity))
    _one_of("regularizer", chosen.regularizer, get_args(Regularizer))
    _one_of("head_reduction", chosen.head_reduction, get_args(HeadReduction))
    for name in ("heads", "queries", "steps", "batch_size"):
        value = getattr(chosen, name)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise InputError(f"{name} must be a whole number of at least 1, got {value!r}.")
    if chosen.beta is not None:
        check_beta(chosen.beta)
    if not (math.isfinite(chosen.learning_rate) and chosen.learning_rate > 0):
        raise InputError(f"learning_rate must be a finite number above 0, got {chosen.learning_rate}.")
    return chosen


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}, got {value!r}.")
