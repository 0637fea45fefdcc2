"""What a recipe of AP-OOD sets, and what an argument overrides."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from apood.pooling import Similarity, check_beta
from apood.support.arguments import one_of, whole_number
from apood.support.errors import InputError

__all__ = ["HeadReduction", "Recipe", "RecipeName", "Regularizer", "ScoreName", "resolve"]

RecipeName = Literal["robust", "paper"]
ScoreName = Literal["sum", "min"]
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
    heads: int | None = None  # None: D, or with `matched_size` M T = D
    beta: float | None = None  # None: set by `temperature`
    similarity: Similarity = "dot"

    matched_size: bool = True  # as many parameters as a covariance matrix has
    adapted: bool = False  # to the data: sinks skipped, tokens centred and whitened, start from a rotation
    temperature: float | None = None  # beta times the spread of the similarities at the start; None: beta = 1/√D
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
    batch_size=128,
    learning_rate=0.001,
    matched_size=False,  # M < D heads span M directions of the mean: at β near 0 they would see less than Mahalanobis
    adapted=True,
    temperature=1.5,
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
    one_of("recipe", recipe, get_args(RecipeName))
    base = ROBUST if recipe == "robust" else PAPER
    chosen = replace(base, **{name: value for name, value in arguments.items() if value is not None})
    one_of("similarity", chosen.similarity, get_args(Similarity))
    one_of("regularizer", chosen.regularizer, get_args(Regularizer))
    one_of("head_reduction", chosen.head_reduction, get_args(HeadReduction))
    for name in ("heads", "queries", "steps", "batch_size"):
        if getattr(chosen, name) is not None:
            whole_number(name, getattr(chosen, name), least=1)
    if chosen.beta is not None:
        check_beta(chosen.beta)
    if not (math.isfinite(chosen.learning_rate) and chosen.learning_rate > 0):
        raise InputError(f"learning_rate must be a finite number above 0, got {chosen.learning_rate}.")
    return chosen
