"""Which encoder made some tokens: detectors score only tokens of the encoder they were fitted on."""

from collections.abc import Mapping

__all__ = [
    "FOLDER",
    "SAMPLING",
    "EncoderIdentity",
    "describe_encoder",
    "describe_other",
    "drop_location",
    "same_encoder",
]

EncoderIdentity = Mapping[str, str | int | bool | None]
"""What makes two encoders interchangeable: model, revision, layer, mode, max_tokens, ..."""

FOLDER = "folder"
"""The key of a hint that decides nothing: where a model that came from a local folder lay."""

SAMPLING = ("samples", "sample_tokens", "seed")
"""The keys that say how the channel `sample_logprobs` was drawn: how many outputs, of how many tokens at most."""


def same_encoder(first: EncoderIdentity | None, second: EncoderIdentity | None, *, same_samples: bool = False) -> bool:
    """Whether tokens of one can be scored by a detector fitted on the other; an unknown encoder is trusted.

    The name of a model says where it lay, not what it is, so its fingerprint decides where both have one. How samples
    were drawn changes no token, so it decides only with `same_samples`.
    """
    if first is None or second is None:
        return True
    if first.get("fingerprint") and second.get("fingerprint"):
        first, second = drop_location(first), drop_location(second)
    ignored = {FOLDER} if same_samples else {FOLDER, *SAMPLING}
    return all(first.get(key) == second.get(key) for key in {*first, *second} - ignored)


def drop_location(encoder: EncoderIdentity) -> EncoderIdentity:
    """What is left of an encoder that may have moved, since its fingerprint says which one it is."""
    if not encoder.get("fingerprint"):
        return encoder
    return {key: value for key, value in encoder.items() if key not in ("model", "revision", FOLDER)}


def describe_encoder(encoder: EncoderIdentity | None) -> str:
    """An encoder in one line, for messages."""
    if encoder is None:
        return "an unknown encoder"
    return ", ".join(
        f"{key} {_shown(key, value)}" for key, value in encoder.items() if value is not None and key != FOLDER
    )


def describe_other(encoder: EncoderIdentity | None, beside: EncoderIdentity | None) -> str:
    """What tells an encoder from the one beside it, for messages."""
    if encoder is None or beside is None:
        return describe_encoder(encoder)
    if encoder.get("fingerprint") == beside.get("fingerprint"):
        encoder, beside = drop_location(encoder), drop_location(beside)
    keys = [key for key in {**encoder, **beside} if encoder.get(key) != beside.get(key) and key != FOLDER]
    return ", ".join(f"no {key}" if encoder.get(key) is None else f"{key} {_shown(key, encoder[key])}" for key in keys)


def _shown(key: str, value: str | int | bool | None) -> str:
    text = str(value)
    return f"{text[:12]}…" if key == "fingerprint" and len(text) > 12 else text


# old names
without_place = drop_location
