"""One progress bar style: visible on a terminal, silent in a pipe."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

__all__ = ["bar", "track"]

Item = TypeVar("Item")


def bar(total: int | None, label: str, unit: str = "it", initial: int = 0) -> "tqdm[Any]":
    """A bar to update by hand, for loops whose steps differ in size."""
    return tqdm(
        total=total,
        desc=label,
        unit=unit,
        unit_scale=unit != "it",
        initial=initial,
        leave=False,
        dynamic_ncols=True,
        disable=not sys.stderr.isatty(),
    )


def track(items: Iterable[Item], label: str, total: int | None = None) -> Iterator[Item]:
    """Iterates over `items` and shows how far it is."""
    with bar(total, label) as progress:
        for item in items:
            yield item
            progress.update()
