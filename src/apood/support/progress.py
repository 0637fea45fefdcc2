"""Progress bars: drawn on a terminal; elsewhere one line per minute, and one at the start of long work."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

from apood.support.checks import format_duration

__all__ = ["progress_bar", "relabel", "track"]

Item = TypeVar("Item")
_ON_TERMINAL: dict[str, Any] = {"mininterval": 0.1, "dynamic_ncols": True}
_MINUTE = 60.0  # work that takes less prints nothing
_AS_LINES: dict[str, Any] = {"mininterval": _MINUTE, "maxinterval": _MINUTE, "delay": _MINUTE, "ncols": 100}
_SOON = 3.0  # seconds after which the pace of the work is known well enough


def progress_bar(
    total: int | None, label: str, unit: str = "it", initial: int = 0, *, forecast: bool = False
) -> "tqdm[Any]":
    """Return a bar to update by hand, for loops whose steps differ in size.

    Where no bar can be drawn, a `forecast` is a line at the start of work of more than a minute that says how long it
    takes. Leave it out if somebody else says so.
    """
    terminal = sys.stderr.isatty()
    kind: type[tqdm[Any]] = _ForecastBar if forecast and not terminal else tqdm
    return kind(
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


class _ForecastBar(tqdm):  # type: ignore[type-arg]
    """A bar that says once, early, how long the rest takes, if that is more than a minute."""

    _is_known = False

    def update(self, n: float | None = 1) -> bool | None:
        shown = super().update(n)
        done, seconds = self.n - self.initial, time.time() - self.start_t
        if not self._is_known and self.total is not None and done > 0 and seconds >= _SOON:
            self._is_known = True
            if (rest := seconds * (self.total - self.n) / done) > _MINUTE:
                text = f"{self.desc}: {self.n:,.0f} of {self.total:,} done, about {format_duration(rest)} to go."
                print(text, file=sys.stderr, flush=True)
        return shown


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
