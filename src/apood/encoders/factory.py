"""The encoder that a model folder is for, by its name or by the identity that a store or a detector keeps of it."""

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

_FOR_SOUNDS = {"mode", "layer", "special_tokens", "device", "dtype"}
_REMEMBERED = ("mode", "layer", "max_tokens", "max_new_tokens", "beams", "template", "special_tokens")


def open_encoder(model: str | Path | Pretrained, **options: Any) -> "TextEncoder | AudioEncoder":
    """An `AudioEncoder` for a model that takes sounds, else a `TextEncoder`; both have the arguments of theirs."""
    pretrained = find_pretrained(model)
    if not is_audio_model(pretrained.folder):
        return TextEncoder(pretrained, **options)
    if foreign := sorted(options.keys() - _FOR_SOUNDS):
        raise InputError(f"The model {pretrained.name!r} takes sounds, for which {foreign[0]} means nothing.")
    if (mode := options.pop("mode", "input")) != "input":
        raise InputError(f"The model {pretrained.name!r} takes sounds, for which there is no mode {mode}, only input.")
    from apood.encoders.audio.encoder import AudioEncoder

    return AudioEncoder(pretrained, **options)


def reopen_encoder(
    identity: EncoderIdentity, model: str | Path | None = None, *, channels: Collection[str] = (), **options: Any
) -> "TextEncoder | AudioEncoder":
    """The encoder that has the `identity`, and gives at least those `channels`.

    A model from the hub is found by its name and revision, one from a local folder where it lay, or under the
    folder's name in the working directory; `model` says where it is otherwise. Another model is refused.
    """
    if not (isinstance(identity.get("model"), str) and isinstance(identity.get("layer"), int)):
        raise InputError(
            f"The tokens came from {describe_encoder(identity)}, which is no encoder of apood, "
            "so nothing can be embedded as they were: give a token store instead."
        )
    remembered = {key: identity[key] for key in _REMEMBERED if key in identity}
    if "sample_logprobs" in channels:
        remembered |= _sampling_of(identity)
    found = find_pretrained(_place_of(identity) if model is None else model)
    if is_audio_model(found.folder):
        remembered.pop("max_tokens", None)  # the model says it
    else:
        remembered["logprobs"] = None if "token_logprobs" in channels else False
    encoder = open_encoder(found, **remembered, **options)
    if not same_encoder(identity, encoder.identity):
        raise InputError(
            f"The model {found.name!r} is another encoder than the one asked for: it gives tokens from "
            f"{describe_encoder(encoder.identity)}; asked for were those from {describe_encoder(identity)}."
        )
    return encoder


def _sampling_of(identity: EncoderIdentity) -> dict[str, Any]:
    """The arguments that samples were drawn with."""
    samples, tokens, seed = (identity.get(key) for key in SAMPLING)
    if samples is None:
        raise InputError(
            f"The tokens came from {describe_encoder(identity)}, without samples, but their log-probabilities are "
            "asked for: embed with samples, and give the store."
        )
    return {"samples": samples, "max_new_tokens": tokens, "seed": seed}


def _place_of(identity: EncoderIdentity) -> str:
    name, revision = str(identity["model"]), identity.get("revision")
    if revision is not None:
        return f"{name}@{revision}"
    for place in (identity.get(FOLDER), name):
        if isinstance(place, str) and Path(place).is_dir():
            return place
    raise InputError(
        f"The tokens came from the model {name!r}, and there is no such folder here: say where the model lies, "
        "with model= or --model."
    )
