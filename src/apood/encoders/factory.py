"""Open the encoder for a model, or for the encoder identity that a token store or a detector keeps."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apood.encoders.base.pretrained import Pretrained, find_pretrained, is_audio_model
from apood.encoders.text.encoder import TextEncoder
from apood.support.errors import InputError
from apood.tokens.identity import FOLDER, SAMPLING, EncoderIdentity, describe_encoder, same_encoder

if TYPE_CHECKING:
    from apood.encoders.audio.encoder import AudioEncoder

__all__ = ["open_encoder", "reopen_encoder"]

_AUDIO_OPTIONS = {"mode", "layer", "special_tokens", "device", "dtype"}
_IDENTITY_OPTIONS = ("mode", "layer", "max_tokens", "max_new_tokens", "beams", "template", "special_tokens")


def open_encoder(model: str | Path | Pretrained, **options: Any) -> "TextEncoder | AudioEncoder":
    """Return an `AudioEncoder` for a model that takes sounds, else a `TextEncoder`; `options` are its arguments."""
    pretrained = find_pretrained(model)
    if not is_audio_model(pretrained.folder):
        return TextEncoder(pretrained, **options)
    if unknown := sorted(options.keys() - _AUDIO_OPTIONS):
        raise InputError(f"The model {pretrained.name!r} takes sounds, for which there is no option {unknown[0]}.")
    if (mode := options.pop("mode", "input")) != "input":
        raise InputError(f"The model {pretrained.name!r} takes sounds, for which there is no mode {mode}, only input.")
    from apood.encoders.audio.encoder import AudioEncoder

    return AudioEncoder(pretrained, **options)


def reopen_encoder(
    identity: EncoderIdentity, model: str | Path | None = None, *, channels: Collection[str] = (), **options: Any
) -> "TextEncoder | AudioEncoder":
    """Return the encoder with this `identity` that gives at least the `channels`.

    A model from the hub is found by its name and revision. A local model is found in its original folder, or in a
    folder of the same name in the working directory; `model` names any other place. Raise InputError if the model
    found there is another one.
    """
    if not (isinstance(identity.get("model"), str) and isinstance(identity.get("layer"), int)):
        raise InputError(
            f"The tokens came from {describe_encoder(identity)}, which apood cannot open as an encoder: "
            "give a token store instead."
        )
    arguments = {key: identity[key] for key in _IDENTITY_OPTIONS if key in identity}
    if "sample_logprobs" in channels:
        arguments |= _get_sampling(identity)
    found = find_pretrained(_find_model(identity) if model is None else model)
    if is_audio_model(found.folder):
        arguments.pop("max_tokens", None)  # follows from the model
    else:
        arguments["logprobs"] = None if "token_logprobs" in channels else False
    encoder = open_encoder(found, **arguments, **options)
    if not same_encoder(identity, encoder.identity):
        raise InputError(
            f"The model {found.name!r} is another encoder than the requested one: it gives tokens from "
            f"{describe_encoder(encoder.identity)}, but tokens from {describe_encoder(identity)} were requested."
        )
    return encoder


def _get_sampling(identity: EncoderIdentity) -> dict[str, Any]:
    samples, tokens, seed = (identity.get(key) for key in SAMPLING)
    if samples is None:
        raise InputError(
            f"The tokens came from {describe_encoder(identity)}, without samples, but the log-probabilities of samples "
            "are needed: embed with samples, and give the token store."
        )
    return {"samples": samples, "max_new_tokens": tokens, "seed": seed}


def _find_model(identity: EncoderIdentity) -> str:
    name, revision = str(identity["model"]), identity.get("revision")
    if revision is not None:
        return f"{name}@{revision}"
    for place in (identity.get(FOLDER), name):
        if isinstance(place, str) and Path(place).is_dir():
            return place
    raise InputError(
        f"The tokens came from the model {name!r}, and there is no such folder here: give the folder of the model "
        "with model= or --model."
    )
