"""The identity of the encoder that made some tokens: detectors score only tokens of their own encoder."""

from collections.abc import Mapping

from apood.tokens.probe import TOLERANCE, compare_probes

__all__ = [
    "FOLDER",
    "PROBE",
    "SAMPLING",
    "EncoderIdentity",
    "describe_difference",
    "describe_encoder",
    "describe_other",
    "drop_location",
    "find_difference",
    "same_encoder",
    "update_identity",
]

EncoderIdentity = Mapping[str, str | int | bool | None]
"""The settings that make two encoders interchangeable: model, revision, layers, mode, max_tokens, on_long, ..."""

FOLDER = "folder"
"""The key of the local folder that a model was loaded from. It is a hint and never compared."""

PROBE = "probe"
"""The key of the numbers by which the tokens of a model server are known (see `make_probe`)."""

SAMPLING = ("samples", "sample_tokens", "seed")
"""The keys that describe how the channel `sample_logprobs` was sampled."""

_SILENT = (FOLDER, PROBE)  # keys that no message shows
_ABSENT = {"on_long": "beginning"}  # the meaning of a key that is absent, also in identities of before it existed


def update_identity(encoder: EncoderIdentity) -> EncoderIdentity:
    """Return an identity with the keys of today. An earlier one has the number of a single layer as `layer`."""
    layer = encoder.get("layer")
    if "layers" in encoder or isinstance(layer, bool) or not isinstance(layer, int):
        return encoder
    return {("layers" if key == "layer" else key): (str(layer) if key == "layer" else encoder[key]) for key in encoder}


def same_encoder(first: EncoderIdentity | None, second: EncoderIdentity | None, *, same_samples: bool = False) -> bool:
    """Return whether a detector fitted on tokens of `first` can score tokens of `second`.

    An unknown encoder (None) is trusted. If both have a fingerprint, it decides, and not the name of the model,
    which only says where it was loaded from. Of two servers, the tokens of fixed texts decide. How samples were drawn
    changes no token and is compared only with `same_samples`.
    """
    if first is None or second is None:
        return True
    first, second = update_identity(first), update_identity(second)
    if _are_measured(first, second):
        first, second = drop_location(first), drop_location(second)
    ignored = {FOLDER} if same_samples else {FOLDER, *SAMPLING}
    if (difference := find_difference(first, second)) is not None:
        if not difference <= TOLERANCE:
            return False
        ignored |= {PROBE}
    return all(first.get(key) == second.get(key) for key in {*first, *second} - ignored)


def find_difference(first: EncoderIdentity, second: EncoderIdentity) -> float | None:
    """Return how much the tokens of fixed texts differ between two servers, relatively; None if one is not a server."""
    probes = first.get(PROBE), second.get(PROBE)
    return compare_probes(str(probes[0]), str(probes[1])) if None not in probes else None


def _are_measured(first: EncoderIdentity, second: EncoderIdentity) -> bool:
    """Return whether both identities have a fingerprint of model files, or both have the tokens of fixed texts."""
    return any(first.get(key) and second.get(key) for key in ("fingerprint", PROBE))


def drop_location(encoder: EncoderIdentity) -> EncoderIdentity:
    """Return an identity without its model name, revision and folder if something else decides, else unchanged."""
    if not (encoder.get("fingerprint") or encoder.get(PROBE)):
        return encoder
    return {key: value for key, value in encoder.items() if key not in ("model", "revision", FOLDER)}


def describe_encoder(encoder: EncoderIdentity | None) -> str:
    """Return an encoder in one line, for messages."""
    if encoder is None:
        return "an unknown encoder"
    encoder = update_identity(encoder)
    return ", ".join(
        _format_setting(key, encoder) for key in encoder if encoder[key] is not None and key not in _SILENT
    )


def describe_other(encoder: EncoderIdentity | None, other: EncoderIdentity | None) -> str:
    """Return the settings of `encoder` that differ from those of `other`, for messages."""
    if encoder is None or other is None:
        return describe_encoder(encoder)
    encoder, other = update_identity(encoder), update_identity(other)
    if encoder.get("fingerprint") == other.get("fingerprint") and encoder.get(PROBE) == other.get(PROBE):
        encoder, other = drop_location(encoder), drop_location(other)
    keys = [key for key in {**encoder, **other} if encoder.get(key) != other.get(key) and key not in _SILENT]
    parts = [_format_setting(key, encoder) for key in keys]
    if (difference := find_difference(encoder, other)) is not None and not difference <= TOLERANCE:
        parts.append(describe_difference(difference))
    return ", ".join(parts)


def describe_difference(difference: float) -> str:
    """Return how much tokens of fixed texts differ, for messages."""
    if difference == float("inf"):
        return "fixed texts have other tokens"
    return f"the tokens of fixed texts differ by {difference:.1%}, more than {TOLERANCE:.0%}"


def _format_setting(key: str, encoder: EncoderIdentity) -> str:
    if encoder.get(key) is None:
        return f"{key} {_ABSENT[key]}" if key in _ABSENT else f"no {key}"
    text = str(encoder[key])
    return f"{key} {text[:12]}…" if key == "fingerprint" and len(text) > 12 else f"{key} {text}"
