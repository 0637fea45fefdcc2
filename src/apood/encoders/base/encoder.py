"""What every encoder does, whatever its items are: texts, pairs of texts, sounds."""

from collections.abc import Sequence
from typing import Any, Protocol

from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch
from apood.tokens.identity import EncoderIdentity

__all__ = ["Encoder", "Prepared", "layer_number"]


def layer_number(layer: int, layers: int, name: str) -> int:
    """The number of a hidden layer of the model `name`, which has so many.

    -1 stays; every other layer is counted from the bottom, so that one layer has one number.
    """
    if not -layers <= layer < layers:
        raise InputError(f"Layer {layer} of {name!r} does not exist: allowed are {-layers} to {layers - 1}.")
    return layer if layer >= -1 else layer + layers


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
