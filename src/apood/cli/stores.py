"""Where commands find tokens: in a store, or in texts with the encoder that a detector was fitted on."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from apood.support.errors import InputError

if TYPE_CHECKING:
    from apood.detectors.base import Detector
    from apood.encoders.text import TextEncoder
    from apood.tokens.store import TokenStore

__all__ = ["encoder_of", "named_stores", "open_store", "texts_of"]


def open_store(folder: Path, detector: "type[Detector] | Detector") -> "TokenStore":
    """The store in `folder`, with those channels alone that the detector reads."""
    from apood.tokens.store import TokenStore

    return TokenStore(folder, channels=sorted(detector.requires - {"tokens"}))


def named_stores(given: Sequence[str]) -> dict[str, Path]:
    """The stores that texts like `news=stores/news` name."""
    from apood.evaluation.rows import MEAN

    named: dict[str, Path] = {}
    for text in given:
        name, _, folder = text.partition("=")
        if not name or not folder:
            raise InputError(f"--ood takes NAME=STORE, got {text!r}.")
        if name == MEAN:
            raise InputError(f"An OOD set cannot be called {MEAN!r}: that name is kept for the mean over the sets.")
        if name in named:
            raise InputError(f"Two OOD sets are called {name!r}: each needs a name of its own.")
        named[name] = Path(folder)
    return named


def texts_of(inputs: Sequence[str], field: str) -> Iterator[str]:
    """The texts of all inputs; refused when there are none, or when the first cannot be read."""
    from apood.encoders.inputs import read_texts

    texts = read_texts(inputs, field)
    first = next(texts, None)
    if first is None:
        raise InputError(f"There is no text in {', '.join(map(repr, inputs))}.")
    return chain([first], texts)


def encoder_of(detector: "Detector", model: str | None) -> "TextEncoder":
    """The encoder whose tokens the detector was fitted on, from `model` where its files do not lie at their name."""
    from apood.encoders.text import TextEncoder
    from apood.tokens.identity import describe_encoder, same_encoder

    identity = detector.encoder_
    if identity is None:
        raise InputError(
            "The detector does not say which encoder its tokens came from, so it cannot score texts: "
            "embed them as those were, and give the store."
        )
    name, layer, max_tokens = (identity.get(key) for key in ("model", "layer", "max_tokens"))
    if not (isinstance(name, str) and isinstance(layer, int) and isinstance(max_tokens, int)):
        raise InputError(
            f"The detector was fitted on tokens from {describe_encoder(identity)}, which is no text encoder of apood, "
            "so texts cannot be embedded for it: score a token store instead."
        )
    if model is None:
        revision = identity.get("revision")
        if revision is None and not Path(name).is_dir():
            raise InputError(
                f"The detector was fitted on tokens of the model {name!r}, and there is no such folder here: "
                "say where the model lies with --model."
            )
        model = name if revision is None else f"{name}@{revision}"
    encoder = TextEncoder(model, layer=layer, max_tokens=max_tokens)
    if not same_encoder(identity, encoder.identity):
        raise InputError(
            f"The model {model!r} is not the encoder of this detector: it gives tokens from "
            f"{describe_encoder(encoder.identity)}; the detector was fitted on those from {describe_encoder(identity)}."
        )
    return encoder
