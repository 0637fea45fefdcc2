"""One progress bar style: lively on a terminal, elsewhere a line now and then of what takes long."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

__all__ = ["progress_bar", "relabel", "track"]

Item = TypeVar("Item")
_LIVELY: dict[str, Any] = {"mininterval": 0.1, "dynamic_ncols": True}
_MINUTE = 60.0  # who is done by then says nothing
_NOW_AND_THEN: dict[str, Any] = {"mininterval": _MINUTE, "maxinterval": _MINUTE, "delay": _MINUTE, "ncols": 100}


def progress_bar(total: int | None, label: str, unit: str = "it", initial: int = 0) -> "tqdm[Any]":
    """A bar to update by hand, for loops whose steps differ in size."""
    lively = sys.stderr.isatty()
    return tqdm(
        total=total,
        desc=label,
        unit=unit,
        unit_scale=unit != "it",
        initial=initial,
        leave=False,
        position=None if lively else 0,  # lines stand below one another: only a terminal has a place for each bar
        file=sys.stderr if lively else _Lines(),
        **(_LIVELY if lively else _NOW_AND_THEN),
    )


def relabel(progress: "tqdm[Any]", label: str) -> None:
    """Says what a bar is at, at once where it is lively."""
    progress.set_description(label, refresh=sys.stderr.isatty())


class _Lines:
    """Standard error for a file or a pipe, where a bar cannot be drawn over itself: each state on a line of its own."""

    def write(self, text: str) -> None:
        if line := text.strip():
            sys.stderr.write(f"{line}\n")

    def flush(self) -> None:
        sys.stderr.flush()


def track(items: Iterable[Item], label: str, total: int | None = None) -> Iterator[Item]:
    """Iterates over `items` and shows how far it is."""
    with progress_bar(total, label) as progress:
        for item in items:
            yield item
            progress.update()
