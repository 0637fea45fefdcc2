"""The contract of encoders, and the layers and dtypes that they accept."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from apood.support.errors import InputError
from apood.tokens.batch import FLOAT_DTYPES, TokenBatch, dtype_name
from apood.tokens.identity import EncoderIdentity

__all__ = ["Encoder", "Prepared", "check_dtype", "choose_dtype", "resolve_layer"]


class Prepared(Protocol):
    """Items that are ready for the model."""

    @property
    def cut(self) -> int:
        """The number of items that were cut at a limit."""


class Encoder(Protocol):
    """Turns items (texts, pairs of texts or sounds) into token states.

    It does so in two steps, so that the CPU can prepare the next items while the device runs the model.

    Attributes:
        dim: D, the length of a token.
        identity: the settings that another encoder must share to give the same tokens.
        max_tokens: the largest number of tokens per sequence.
        truncated: the number of items so far that were cut at a limit.
    """

    dim: int
    identity: EncoderIdentity
    max_tokens: int
    truncated: int

    def prepare(self, items: Sequence[Any]) -> Any:
        """Return the model's input as `Prepared`. It changes nothing, so that another thread may call it."""

    def run(self, prepared: Any) -> TokenBatch:
        """Return states and channels in the order of the items, on the CPU."""

    def encode(self, items: Sequence[Any]) -> TokenBatch:
        """Prepare the items and run the model."""


def resolve_layer(layer: int, layers: int, name: str) -> int:
    """Return the number of a hidden layer of the model `name`, which has `layers` of them.

    -1 stays; all other layers are counted from the bottom, so that each has one number.
    """
    if not -layers <= layer < layers:
        raise InputError(f"Layer {layer} of {name!r} does not exist: allowed are {-layers} to {layers - 1}.")
    return layer if layer >= -1 else layer + layers


def check_dtype(dtype: torch.dtype) -> None:
    """Raise InputError if token batches cannot have this dtype."""
    if dtype not in FLOAT_DTYPES:
        raise InputError(f"An encoder computes in {', '.join(map(dtype_name, FLOAT_DTYPES))}, got {dtype}.")


def choose_dtype(device: torch.device) -> torch.dtype:
    """Return the default dtype of models: bfloat16 on a GPU that supports it, float32 elsewhere."""
    supported = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if supported else torch.float32
