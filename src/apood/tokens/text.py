"""Texts as a channel of a token batch: UTF-8 bytes, one ragged sequence a text."""

from collections.abc import Iterable

import torch

from apood.support.errors import InputError
from apood.tokens.batch import Ragged

__all__ = ["channel_texts", "text_channel"]


def text_channel(texts: Iterable[str]) -> Ragged:
    """The UTF-8 bytes of each text; lone surrogates, which broken sources contain, survive the round trip."""
    if isinstance(texts, str):
        raise InputError("A text channel is made of a list of texts, got a single str.")
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    joined = bytearray(b"".join(encoded))
    values = torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.empty(0, dtype=torch.uint8)
    return Ragged.from_lengths(values, [len(e) for e in encoded])


def channel_texts(channel: Ragged) -> list[str]:
    """The texts that `text_channel` was given."""
    if channel.values.dtype != torch.uint8 or channel.values.ndim != 1:
        raise InputError(
            f"A text channel holds UTF-8 bytes as uint8, got {channel.values.dtype} "
            f"of shape {tuple(channel.values.shape)}."
        )
    return [sequence.cpu().numpy().tobytes().decode("utf-8", "surrogatepass") for sequence in channel]
