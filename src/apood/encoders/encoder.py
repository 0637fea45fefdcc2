"""What every encoder does, whatever its items are: texts, pairs of texts, sounds."""

from collections.abc import Sequence
from typing import Any, Protocol

from apood.tokens.batch import TokenBatch
from apood.tokens.identity import EncoderIdentity

__all__ = ["Encoder", "Prepared"]


class Prepared(Protocol):
    """Items that only the model is missing for; `cut` says how many of them were too long for it."""

    @property
    def cut(self) -> int:
        """How many items were cut at a limit."""


class Encoder(Protocol):
    """Turns items into token states in two steps, so that the first can run while the device is at the second.

    Attributes:
        dim: D, the length of a token.
        identity: what makes another encoder interchangeable with this one.
        max_tokens: how many tokens a sequence has at most.
        truncated: how many items were cut at a limit so far, of those that were run.
    """

    dim: int
    identity: EncoderIdentity
    max_tokens: int
    truncated: int

    def prepare(self, items: Sequence[Any]) -> Any:
        """The CPU's part (ids, spectrograms) as `Prepared`; it changes nothing, so that another thread may run it."""

    def run(self, prepared: Any) -> TokenBatch:
        """The model's part: states and channels in the order of the items, on the CPU."""

    def encode(self, items: Sequence[Any]) -> TokenBatch:
        """Both parts."""
