"""Progress bars: drawn on a terminal; elsewhere one line per minute."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

__all__ = ["progress_bar", "relabel", "track"]

Item = TypeVar("Item")
_ON_TERMINAL: dict[str, Any] = {"mininterval": 0.1, "dynamic_ncols": True}
_MINUTE = 60.0  # work that takes less prints nothing
_AS_LINES: dict[str, Any] = {"mininterval": _MINUTE, "maxinterval": _MINUTE, "delay": _MINUTE, "ncols": 100}


def progress_bar(total: int | None, label: str, unit: str = "it", initial: int = 0) -> "tqdm[Any]":
    """Return a bar to update by hand, for loops whose steps differ in size."""
    terminal = sys.stderr.isatty()
    return tqdm(
        total=total,
        desc=label,
        unit=unit,
        unit_scale=unit != "it",
        initial=initial,
        leave=False,
        position=None if terminal else 0,  # lines follow one another: only a terminal has a place for each bar
        file=sys.stderr if terminal else _Lines(),
        **(_ON_TERMINAL if terminal else _AS_LINES),
    )


def relabel(progress: "tqdm[Any]", label: str) -> None:
    """Change the label of a bar; a terminal shows it at once."""
    progress.set_description(label, refresh=sys.stderr.isatty())


class _Lines:
    """Standard error as a file or a pipe, where a bar cannot be redrawn: each state is a line of its own."""

    def write(self, text: str) -> None:
        if line := text.strip():
            sys.stderr.write(f"{line}\n")

    def flush(self) -> None:
        sys.stderr.flush()


def track(items: Iterable[Item], label: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items and show the progress."""
    with progress_bar(total, label) as progress:
        for item in items:
            yield item
            progress.update()
