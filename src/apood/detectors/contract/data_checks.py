"""What a detector refuses in the data it is given: what is missing, empty, or not finite."""

import math
from collections.abc import Callable

import numpy as np
import torch

from apood.support.errors import InputError
from apood.support.progress import bar
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.source import TokenSource, token_budget

__all__ = ["filled", "refuse_lacking", "refuse_not_finite", "refuse_unfit", "required_parts"]

TOKENS = "tokens"


def required_parts(batch: TokenBatch, requires: frozenset[str]) -> dict[str, Ragged]:
    """The tokens, the channels, or both: whatever a method looks at."""
    return {name: batch if name == TOKENS else batch.channels[name] for name in sorted(requires)}


def filled(batch: TokenBatch, requires: frozenset[str]) -> torch.Tensor:
    """Which sequences have at least one row of everything that is required."""
    bounds = [part.offsets.numpy() for part in required_parts(batch, requires).values()]  # fast on a few numbers
    return torch.from_numpy(np.logical_and.reduce([own[1:] > own[:-1] for own in bounds]))


def refuse_lacking(source: TokenSource, method: str, requires: frozenset[str], role: str) -> None:
    """Refuses data without what the method looks at."""
    there = [*([TOKENS] if source.dim else []), *sorted(source.channels)]
    for lacking in sorted(requires - set(there)):
        raise InputError(f"The method {method} needs {lacking}, which the {role} lack; they have {', '.join(there)}.")


def refuse_unfit(
    source: TokenSource,
    requires: frozenset[str],
    role: str,
    check: Callable[[TokenBatch, int, str], None] | None = None,
) -> None:
    """Refuses, for fitting, a source without sequences, with empty ones, or with values that are not finite.

    `check` is what else is to be asked of each batch; see `Detector._check_batch`.
    """
    if len(source) == 0:
        raise InputError(f"There are no {role} sequences to fit on.")
    if TOKENS in requires:  # told by the lengths, without reading a token
        _refuse_empty(source.lengths > 0, TOKENS, 0, role)
    first, where = 0, f"the {role} data"
    with bar(len(source), f"check {role}", "seq") as progress:
        for batch in source.batches(token_budget(source.dim)):
            for name, part in required_parts(batch, requires).items():
                _refuse_empty(part.lengths > 0, name, first, role)
            refuse_not_finite(batch, requires, first, where)
            if check is not None:
                check(batch, first, where)
            first += len(batch)
            progress.update(len(batch))


def _refuse_empty(has_rows: torch.Tensor, name: str, first: int, role: str) -> None:
    if not bool(has_rows.all()):
        index = first + int((~has_rows).nonzero()[0])
        raise InputError(f"Sequence {index} of the {role} data has no {name}; remove empty sequences before fitting.")


def refuse_not_finite(batch: TokenBatch, requires: frozenset[str], first: int, where: str) -> None:
    """Names the first NaN or infinite value; `first` is the number of the batch's first sequence."""
    for name, part in required_parts(batch, requires).items():
        if _are_finite(part.values):
            continue
        bad = (
            (~torch.isfinite(part.values)).flatten(1) if part.values.ndim > 1 else ~torch.isfinite(part.values)[:, None]
        )
        rows = bad.any(1).nonzero().flatten().cpu()
        if len(rows):
            sequence = int(torch.searchsorted(part.offsets, rows[0], right=True)) - 1
            row = int(rows[0] - part.offsets[sequence])
            what = f"Token {row}" if name == TOKENS else f"Row {row} of {name}"
            raise InputError(
                f"{what} of sequence {first + sequence} in {where} is NaN or infinite; every value must be finite."
            )


def _are_finite(values: torch.Tensor) -> bool:
    """In one cheap pass, because a finite sum has no NaN and no infinity in it; two where many 16-bit ones overflow."""
    return math.isfinite(values.sum()) or all(map(math.isfinite, torch.aminmax(values)))
