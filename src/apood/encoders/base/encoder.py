"""The contract of encoders."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch
from apood.tokens.identity import FOLDER, PROBE, EncoderIdentity

__all__ = ["Encoder", "Prepared", "describe_opened", "encode_or_refuse"]

_UNSHOWN = ("model", "revision", "fingerprint", FOLDER, PROBE)


class Prepared(Protocol):
    """Items that are ready for the model."""

    @property
    def cut(self) -> frozenset[int]:
        """The items that were cut at a limit, by their indices among those that are encoded."""

    @property
    def refused(self) -> Mapping[int, str]:
        """What is wrong with the items that are not encoded, by their indices."""


class Encoder(Protocol):
    """Turns items (texts, pairs of texts or sounds) into token states.

    It does so in two steps, so that the CPU can prepare the next items while the device runs the model.

    Attributes:
        device: the device of the model; the CPU if another program runs it.
        dim: D, the length of a token.
        identity: the settings that another encoder must share to give the same tokens.
        max_tokens: the largest number of tokens per sequence.
        truncated: the number of items so far that were cut at a limit.
    """

    device: torch.device
    dim: int
    identity: EncoderIdentity
    max_tokens: int
    truncated: int

    def prepare(self, items: Sequence[Any]) -> Any:
        """Return the model's input as `Prepared`. It changes nothing, so that another thread may call it."""

    def run(self, prepared: Any) -> TokenBatch:
        """Return states and channels in the order of the items, on the CPU: one document per item not refused."""

    def encode(self, items: Sequence[Any]) -> TokenBatch:
        """Prepare the items and run the model."""


def encode_or_refuse(encoder: Encoder, texts: Sequence[Any]) -> TokenBatch:
    """Return the states and channels of every text; raise InputError for the first one that is refused."""
    prepared: Prepared = encoder.prepare(texts)
    for index, problem in prepared.refused.items():
        raise InputError(f"The text at index {index} {problem}.")
    return encoder.run(prepared)


def describe_opened(kind: str, identity: EncoderIdentity, dim: int, device: torch.device) -> str:
    """Return an encoder in one line: its kind, its model, and the settings that decide its tokens."""
    shown = {key: value for key, value in identity.items() if key not in _UNSHOWN}
    settings = ", ".join(f"{key}={value!r}" for key, value in shown.items())
    return f"{kind}({identity['model']!r}, {settings}, dim={dim}, device={str(device)!r})"
