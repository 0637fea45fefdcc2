"""What comes out of an experiment, before it has a format."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apood.report.grid import Grid

__all__ = ["Claim", "Findings", "Table"]

Draw = Callable[[], Any]
"""Draws a picture, as a figure of matplotlib."""


@dataclass(frozen=True)
class Table:
    """A grid under a heading."""

    heading: str
    grid: Grid


@dataclass(frozen=True)
class Claim:
    """Something that the paper says, and whether it holds here; None where nothing here can tell."""

    sentence: str
    holds: bool | None
    because: str = ""

    @property
    def verdict(self) -> str:
        """In words."""
        return {True: "held here", False: "not held here", None: "cannot be told here"}[self.holds]


@dataclass(frozen=True)
class Findings:
    """All of an experiment.

    Attributes:
        results: every figure as plain JSON.
        tables: for people.
        figures: how each picture is drawn, by the name of its file.
        claims: what the paper says, checked.
    """

    results: Mapping[str, Any]
    tables: Sequence[Table] = ()
    figures: Mapping[str, Draw] = field(default_factory=dict)
    claims: Sequence[Claim] = ()

    def as_json(self) -> dict[str, Any]:
        """All but the pictures."""
        said = [{"claim": claim.sentence, "held": claim.holds, "because": claim.because} for claim in self.claims]
        return {**self.results, "claims": said}
