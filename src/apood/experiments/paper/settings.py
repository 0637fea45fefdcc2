"""How large the paper's experiments are, and how their hyperparameters are searched."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from apood.support.checks import suggest_name
from apood.support.errors import InputError

__all__ = ["INVERSE_ROOT", "SHARE", "Beta", "Settings", "beta_of"]

SHARE = 0.8
"""How much of every store a split draws at random, without repetition: five splits that differ in their data."""

InverseRoot = Literal["1/sqrt(D)"]
INVERSE_ROOT: InverseRoot = "1/sqrt(D)"
Beta = float | InverseRoot


def beta_of(beta: Beta, dim: int) -> float:
    """The number that a beta stands for where tokens have `dim` dimensions."""
    return 1 / math.sqrt(dim) if isinstance(beta, str) else float(beta)


@dataclass(frozen=True)
class Settings:
    """The paper's figures; all are upper limits where there is less data.

    Adam without weight decay, its rate of 0.01, the cosine, 1000 steps and batches of 512 are those of AP-OOD's
    `recipe="paper"`, and not repeated here.

    Attributes:
        train: ID sequences that a split learns from.
        aux: AUX sequences that it learns from, or that settings are chosen by.
        evaluated: sequences of each set that are scored, as in the reference code.
        max_tokens: context of the model.
        max_new_tokens: where an output ends.
        samples: outputs drawn a text for the entropy, as in the reference code.
        steps: of every trained method, instead of its own; None leaves them.
        betas: the grid.
        queries: the grid of T; M is D / T.
        aux_weights: the grid of λ.
        aux_counts: numbers of AUX sequences N' to learn from, besides none and all.
    """

    train: int = 100_000
    aux: int = 10_000
    evaluated: int = 10_000
    max_tokens: int = 512
    max_new_tokens: int = 511
    samples: int = 10
    steps: int | None = None
    betas: tuple[Beta, ...] = (INVERSE_ROOT, 0.25, 0.5, 1.0, 2.0)
    queries: tuple[int, ...] = (1, 4, 16, 64)
    aux_weights: tuple[float, ...] = (0.1, 1.0, 10.0)
    aux_counts: tuple[int, ...] = (8, 64, 512, 1024, 4096)

    def stored(self, wanted: int) -> int:
        """How many sequences a store needs for splits of `wanted`."""
        return math.ceil(wanted / SHARE)

    def changed(self, table: Mapping[str, Any]) -> "Settings":
        """The same with what a manifest's table says."""
        known = [field.name for field in fields(self)]
        for name, value in table.items():
            if name not in known:
                raise InputError(
                    f"There is no setting {name!r}{suggest_name(name, known)}; allowed are {', '.join(known)}."
                )
            _check(name, value)
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in table.items()}
        return replace(self, **values)


def _check(name: str, value: Any) -> None:
    if name in ("betas", "aux_weights"):
        allowed = isinstance(value, list) and value and all(_is_weight(one, name == "betas") for one in value)
        also = f" or {INVERSE_ROOT!r}" if name == "betas" else ""
        wanted = f"a list of numbers of at least 0{also}"
    elif name in ("queries", "aux_counts"):
        allowed, wanted = isinstance(value, list) and value and all(map(_is_count, value)), "a list of whole numbers"
    else:
        allowed, wanted = _is_count(value), "a whole number of at least 1"
    if not allowed:
        raise InputError(f"The setting {name} must be {wanted}, got {value!r}.")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_weight(value: Any, is_beta: bool) -> bool:
    if is_beta and value == INVERSE_ROOT:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
