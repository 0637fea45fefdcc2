"""The contract of encoders, and the layers and dtypes that they accept."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from apood.support.errors import InputError
from apood.tokens.batch import FLOAT_DTYPES, TokenBatch, dtype_name
from apood.tokens.identity import EncoderIdentity

__all__ = ["Encoder", "Prepared", "check_dtype", "choose_dtype", "resolve_layer"]


def resolve_layer(layer: int, layers: int, name: str) -> int:
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


def check_dtype(dtype: torch.dtype) -> None:
    """Refuses what no token batch can hold."""
    if dtype not in FLOAT_DTYPES:
        raise InputError(f"An encoder computes in {', '.join(map(dtype_name, FLOAT_DTYPES))}, got {dtype}.")


def choose_dtype(device: torch.device) -> torch.dtype:
    """What a model computes in unless it is told: bfloat16 on a GPU that has it, float32 elsewhere."""
    exact_enough = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if exact_enough else torch.float32
