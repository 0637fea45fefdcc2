"""What a fusion warns of: near copies, and what its members warn of, once and in the numbers of the user."""

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from apood.detectors.contract.unseen import HELD_OUT_SHARE, LEAST_HELD_OUT
from apood.support.errors import DataWarning
from apood.tokens.source import TokenSource

__all__ = ["merge_warnings", "rephrase_shortage", "warn_of_copies"]

_FEW_COPIES = 0.05  # share of the compared ID sequences that is not worth a warning


def warn_of_copies(count: int, compared: int, given: int) -> None:
    """Issue a `DataWarning` if more than a few of the compared sequences have near copies."""
    if count <= _FEW_COPIES * compared:
        return
    which = "" if compared == given else " that were compared"
    warnings.warn(
        f"{count} of {compared} ID sequences{which} are near copies of others. What is usual for new sequences is "
        "learnt as if there were no copies; if new inputs are not copies, remove them.",
        DataWarning,
        stacklevel=4,
    )


@contextmanager
def merge_warnings(instead: Mapping[str, str]) -> Iterator[None]:
    """Issue each distinct warning once, at the end, with the messages in `instead` replaced by others."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for message, category in {(str(one.message), one.category): None for one in caught}:
        warnings.warn(instead.get(message, message), category, stacklevel=5)


def rephrase_shortage(message: str, learnt: int, source: TokenSource) -> str:
    """Return the message about too few sequences with the number that the user gave."""
    enough = max(source.dim + LEAST_HELD_OUT, math.ceil(source.dim / (1 - HELD_OUT_SHARE)))
    return (
        f"{message.rstrip('.')} (a fusion holds out {len(source) - learnt} of the {len(source)} given sequences to "
        f"compare its members, so {enough} would be enough)."
    )
