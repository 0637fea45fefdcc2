"""Open the encoder of a model: from its folder, the hub, or the address of a server."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apood.encoders.base.known_models import find_installed
from apood.encoders.base.pretrained import Pretrained, find_pretrained, is_audio_model
from apood.encoders.remote.client import is_address
from apood.encoders.remote.encoder import ONE_LAYER, RemoteEncoder
from apood.encoders.text.encoder import TextEncoder
from apood.support.errors import InputError
from apood.tokens.identity import (
    FOLDER,
    PROBE,
    SAMPLING,
    EncoderIdentity,
    describe_difference,
    describe_encoder,
    describe_other,
    find_difference,
    same_encoder,
    update_identity,
)
from apood.tokens.probe import TOLERANCE

if TYPE_CHECKING:
    from apood.encoders.audio.encoder import AudioEncoder

__all__ = ["AnyTextEncoder", "open_encoder", "reopen_encoder"]

AnyTextEncoder = TextEncoder | RemoteEncoder
"""An encoder of texts, whose model runs in this process or behind a server."""

_REMOTE_OPTIONS = {"layers", "max_tokens", "on_long"}
_AUDIO_OPTIONS = {"mode", "layers", "special_tokens", "device", "dtype"}
_IDENTITY_OPTIONS = ("mode", "layers", "max_tokens", "on_long", "max_new_tokens", "beams", "template", "special_tokens")


def open_encoder(model: str | Path | Pretrained, **options: Any) -> "AnyTextEncoder | AudioEncoder":
    """Return the encoder of a model; `options` are its arguments.

    It is a `RemoteEncoder` for the address of a server, an `AudioEncoder` for a model that takes sounds, and else a
    `TextEncoder`.
    """
    if isinstance(model, str) and is_address(model):
        return _open_remote(model, **options)
    pretrained = find_pretrained(model)
    if not is_audio_model(pretrained.folder):
        return TextEncoder(pretrained, **options)
    if unknown := sorted(options.keys() - _AUDIO_OPTIONS):
        raise InputError(f"The model {pretrained.name!r} takes sounds, for which there is no option {unknown[0]}.")
    if (mode := options.pop("mode", "input")) != "input":
        raise InputError(f"The model {pretrained.name!r} takes sounds, for which there is no mode {mode}, only input.")
    from apood.encoders.audio.encoder import AudioEncoder

    return AudioEncoder(pretrained, **options)


def _open_remote(address: str, mode: str = "input", **options: Any) -> RemoteEncoder:
    if mode != "input":
        raise InputError(f"The server {address} gives tokens of inputs, so there is no mode {mode}, only input.")
    if unknown := sorted(options.keys() - _REMOTE_OPTIONS):
        raise InputError(f"The model runs behind the server {address}, for which there is no option {unknown[0]}.")
    return RemoteEncoder(address, **options)


def reopen_encoder(
    identity: EncoderIdentity, model: str | Path | None = None, *, channels: Collection[str] = (), **options: Any
) -> "AnyTextEncoder | AudioEncoder":
    """Return the encoder with this `identity` that gives at least the `channels`.

    A server is only asked if `model` is its address: no file decides to whom texts are sent.

    A model from the hub is found by its name and revision, if it is on this machine already. A local model is found in
    its original folder, or in a folder of the same name in the working directory. `model` names any other place, also
    on the hub. Raise InputError if the model found there is another one.
    """
    identity = update_identity(identity)
    if not (isinstance(identity.get("model"), str) and isinstance(identity.get("layers"), str)):
        raise InputError(
            f"The tokens came from {describe_encoder(identity)}, which apood cannot open as an encoder: "
            "give a token store instead."
        )
    arguments = {key: identity[key] for key in _IDENTITY_OPTIONS if key in identity}
    if identity.get(PROBE) is not None or is_address(model):
        return _reopen_remote(identity, model, arguments)
    if "sample_logprobs" in channels:
        arguments |= _get_sampling(identity)
    # A detector from elsewhere may name any model, so only one that the user names is downloaded.
    found = find_pretrained(_find_model(identity), download=False) if model is None else find_pretrained(model)
    if is_audio_model(found.folder):
        arguments.pop("max_tokens", None)  # follows from the model
    else:
        arguments.setdefault("on_long", "beginning")  # the only way before there was a choice
        arguments["logprobs"] = None if "token_logprobs" in channels else False
        arguments |= {name: name in channels for name in ("summary", "sentences")}
    encoder = open_encoder(found, **arguments, **options)
    if not same_encoder(identity, encoder.identity):
        raise InputError(
            f"The model {found.name!r} is another encoder than the requested one: it gives tokens from "
            f"{describe_encoder(encoder.identity)}, but tokens from {describe_encoder(identity)} were requested."
        )
    return encoder


def _reopen_remote(identity: EncoderIdentity, model: str | Path | None, arguments: Mapping[str, Any]) -> RemoteEncoder:
    if not (isinstance(model, str) and is_address(model)):
        raise InputError(
            f"The tokens came from a server with the model {identity['model']!r}, and apood asks no server by itself: "
            "give the address of the server with model= or --model."
        )
    if identity["layers"] != "-1":
        raise InputError(
            f"The tokens are made of the layers {identity['layers']}, and {ONE_LAYER}: embed and fit with tokens of "
            "the server, or give the folder of the model."
        )
    if identity.get(PROBE) is None:
        raise InputError(
            f"The tokens came from {describe_encoder(identity)}, which cannot be compared with those of a server: "
            "embed and fit with tokens of the server, or give the folder of the model."
        )
    arguments = {"on_long": "beginning"} | {key: arguments[key] for key in _REMOTE_OPTIONS if key in arguments}
    encoder = RemoteEncoder(model, **arguments)
    difference = find_difference(identity, encoder.identity)
    if difference is not None and not difference <= TOLERANCE:
        raise InputError(
            f"The server {model} is another encoder than the requested one: {describe_difference(difference)}."
        )
    if not same_encoder(identity, encoder.identity):
        raise InputError(
            f"The server {model} gives tokens with {describe_other(encoder.identity, identity)}, but tokens with "
            f"{describe_other(identity, encoder.identity)} were requested."
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
        if isinstance(place, str) and (Path(place).is_dir() or find_installed(place) is not None):
            return place
    raise InputError(
        f"The tokens came from the model {name!r}, and there is no such folder here: give the folder of the model "
        "with model= or --model."
    )
