"""What a recipe of AP-OOD sets, and what an argument overrides."""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from apood.pooling import Similarity, check_beta
from apood.support.arguments import number, one_of, whole_number

__all__ = ["HeadReduction", "Recipe", "RecipeName", "Regularizer", "ScoreName", "resolve"]

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
    if chosen.temperature is not None:
        number("temperature", chosen.temperature, least=0)
    number("learning_rate", chosen.learning_rate, above=0)
    return chosen
