"""Checks of the data that a detector is given: what is missing, empty, not finite, or of another encoder."""

import math
from collections.abc import Callable, Collection, Iterable, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apood.support.errors import InputError
from apood.support.progress import progress_bar
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.identity import describe_other, same_encoder
from apood.tokens.source import TokenSource, token_budget

__all__ = [
    "find_nonempty",
    "get_required_parts",
    "is_coarse",
    "refuse_huge",
    "refuse_incompatible",
    "refuse_lacking",
    "refuse_nonfinite",
    "refuse_other_than_labels",
    "refuse_unfit",
]

_TOKENS = "tokens"
_SAMPLED = 16  # sequences that show the precision of all
_LARGEST = 1e15  # in size: squares of such values can be added up in float32


def get_required_parts(batch: TokenBatch, requires: frozenset[str]) -> dict[str, Ragged]:
    """Return the tokens and channels of a batch that a method requires, by name."""
    return {name: batch if name == _TOKENS else batch.channels[name] for name in sorted(requires)}


def refuse_other_than_labels(y: Any, count: int, what: str = "sequences") -> None:
    """Raise `InputError` if `y` is neither None nor `count` labels, such as AUX data in its place."""
    if y is None:
        return
    length = len(y) if isinstance(y, Sized) and getattr(y, "ndim", None) != 0 else None  # no 0-d array
    countable = isinstance(y, Iterable) and not isinstance(y, TokenSource)
    if not countable or length != count or any(np.ndim(label) for label in y):
        size = "" if length is None else f" of length {length}"
        raise InputError(
            f"The second argument of fit is y, one label for each of the {count} {what}, which is ignored; got "
            f"{type(y).__name__}{size}. Auxiliary outliers are given by name: fit(X, aux=outliers)."
        )


def find_nonempty(batch: TokenBatch, requires: frozenset[str]) -> Tensor:
    """Return which sequences have at least one row of everything that a method requires."""
    parts = get_required_parts(batch, requires).values()
    bounds = [part.offsets.numpy() for part in parts]  # numpy is faster than torch on a few numbers
    return torch.from_numpy(np.logical_and.reduce([own[1:] > own[:-1] for own in bounds]))


def is_coarse(source: TokenSource) -> bool:
    """Return whether the tokens have the precision of bfloat16 alone, whatever dtype they are stored in."""
    if not source.dim:
        return False
    values = source.select(slice(0, _SAMPLED)).values
    return bool(values.numel()) and torch.equal(values, values.to(torch.bfloat16).to(values.dtype))


def refuse_incompatible(
    source: TokenSource, other: TokenSource, requires: Collection[str], role: str, other_role: str
) -> None:
    """Raise `InputError` if two sources have tokens of different dimensions or from different encoders."""
    if _TOKENS in requires and source.dim != other.dim:
        raise InputError(f"The {role} tokens have D={source.dim}, the {other_role} tokens have D={other.dim}.")
    if not same_encoder(source.encoder, other.encoder):
        raise InputError(
            f"The {role} tokens come from another encoder ({describe_other(source.encoder, other.encoder)}) "
            f"than the {other_role} tokens ({describe_other(other.encoder, source.encoder)})."
        )


def refuse_lacking(source: TokenSource, method: str, requires: frozenset[str], role: str) -> None:
    """Raise `InputError` if data lack something that a method requires."""
    there = [*([_TOKENS] if source.dim else []), *sorted(source.channels)]
    for lacking in sorted(requires - set(there)):
        raise InputError(f"The method {method} needs {lacking}, which the {role} lack; they have {', '.join(there)}.")


def refuse_unfit(
    source: TokenSource,
    requires: frozenset[str],
    role: str,
    check: Callable[[TokenBatch, int, str], None] | None = None,
) -> None:
    """Raise `InputError` if data for fitting have no sequences, empty sequences, or non-finite or huge values.

    `check` is an additional check per batch; see `Detector._check_batch`.
    """
    if len(source) == 0:
        raise InputError(f"There are no {role} sequences to fit on.")
    if _TOKENS in requires:  # the lengths are known without reading any token
        _refuse_empty(source.lengths > 0, _TOKENS, 0, role)
    first, where = 0, f"the {role} data"
    with progress_bar(len(source), f"check {role}", "seq") as progress:
        for batch in source.batches(token_budget(source.dim)):
            for name, part in get_required_parts(batch, requires).items():
                _refuse_empty(part.lengths > 0, name, first, role)
            refuse_nonfinite(batch, requires, first, where)
            if _TOKENS in requires:
                refuse_huge(batch, _TOKENS, first, where)
            if check is not None:
                check(batch, first, where)
            first += len(batch)
            progress.update(len(batch))


def _refuse_empty(has_rows: Tensor, name: str, first: int, role: str) -> None:
    if not bool(has_rows.all()):
        index = first + int((~has_rows).nonzero()[0])
        raise InputError(f"Sequence {index} of the {role} data has no {name}; remove empty sequences before fitting.")


def refuse_nonfinite(batch: TokenBatch, requires: frozenset[str], first: int, where: str) -> None:
    """Raise `InputError` at the first NaN or infinite value; `first` is the index of the batch's first sequence."""
    for name, part in get_required_parts(batch, requires).items():
        if not _are_finite(part.values):
            what = _name_first(~part.values.isfinite(), part, name, first)
            raise InputError(f"{what} in {where} is NaN or infinite; every value must be finite.")


def refuse_huge(part: Ragged, name: str, first: int, where: str) -> None:
    """Raise `InputError` at the first row with a value that is too large to be squared and added up in float32."""
    values = part.values
    if not values.is_floating_point() or torch.finfo(values.dtype).max <= _LARGEST or not values.numel():
        return  # integers are squared in float64, if at all
    if max(map(abs, map(float, torch.aminmax(values)))) > _LARGEST:
        what = _name_first(values.abs() > _LARGEST, part, name, first)
        raise InputError(
            f"{what} in {where} has a value above {_LARGEST:g} in size, which is too large to fit on; leave the "
            "sequence out, or scale all values down."
        )


def _name_first(marked: Tensor, part: Ragged, name: str, first: int) -> str:
    """Return which row of which sequence has the first marked value; `first` is the index of the first sequence."""
    found = marked.reshape(len(marked), -1).any(1).nonzero().flatten()[0].cpu()
    sequence = int(torch.searchsorted(part.offsets, found, right=True)) - 1
    row = int(found - part.offsets[sequence])
    return f"{f'Token {row}' if name == _TOKENS else f'Row {row} of {name}'} of sequence {first + sequence}"


def _are_finite(values: Tensor) -> bool:
    """Return whether all values are finite: a finite sum proves it in one pass; 16-bit sums that overflow need two."""
    return math.isfinite(values.sum()) or all(map(math.isfinite, torch.aminmax(values)))
