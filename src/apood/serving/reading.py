"""What a guard needs of a generator: that it shows what it has read before it generates."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from apood.tokens.batch import TokenBatch

__all__ = ["Guardable", "Reading"]


@dataclass(frozen=True)
class Reading:
    """Some inputs that were read, and can be generated for.

    Attributes:
        indices: which of the texts that were given.
        truncated: which of them are longer than what the detector looks at.
        tokens: their states, and the channels that the detector looks at.
        generate: is given which of them to generate for, by their places in `indices`, and the options of the call;
            gives the outputs and, where outputs are checked, their states.
    """

    indices: list[int]
    truncated: list[bool]
    tokens: TokenBatch
    generate: Callable[[list[int], dict[str, Any]], tuple[list[Any], TokenBatch | None]]


class Guardable(Protocol):
    """A generator in two steps."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held while the generator is used."""

    def read(self, texts: list[str]) -> Iterable[Reading]:
        """The texts, a batch after the other, each read when it is asked for; those without tokens are in none."""
