"""Which encoder made some tokens: detectors score only tokens of the encoder they were fitted on."""

from collections.abc import Mapping

__all__ = ["EncoderIdentity", "describe_encoder", "same_encoder"]

EncoderIdentity = Mapping[str, str | int | bool | None]
"""What makes two encoders interchangeable: model, revision, layer, mode, max_tokens, ..."""


def same_encoder(first: EncoderIdentity | None, second: EncoderIdentity | None) -> bool:
    """Whether tokens of one can be scored by a detector fitted on the other; an unknown encoder is trusted.

    The name of a model says where it lay, not what it is, so its fingerprint decides where both have one.
    """
    if first is None or second is None:
        return True
    ignored = {"model", "revision"} if first.get("fingerprint") and second.get("fingerprint") else set()
    keys = (set(first) | set(second)) - ignored
    return all(first.get(key) == second.get(key) for key in keys)


def describe_encoder(encoder: EncoderIdentity | None) -> str:
    """An encoder in one line, for messages."""
    if encoder is None:
        return "an unknown encoder"
    return ", ".join(f"{key} {value}" for key, value in encoder.items() if value is not None)
