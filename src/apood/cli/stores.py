"""Where commands find tokens: in a store, or in texts and sounds with an encoder."""

import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from apood.support.errors import DataWarning, InputError
from apood.support.wording import counted

if TYPE_CHECKING:
    from apood.data.record import BadRecord, Record
    from apood.detectors.contract.base import Detector
    from apood.encoders.audio.encoder import AudioEncoder
    from apood.encoders.text.encoder import TextEncoder
    from apood.tokens.shard import StoreIndex
    from apood.tokens.store import TokenStore

__all__ = [
    "are_sounds",
    "encoder_of",
    "named_stores",
    "open_store",
    "refuse_other_kind",
    "sound_records",
    "tell_skipped",
    "text_records",
    "unfinished",
    "warn_of_unfinished",
]


_CHANNEL_SOURCES = {
    "token_logprobs": "`apood embed` stores it for causal language models, and in --mode output or reference",
    "sample_logprobs": "`apood embed` stores it with --samples, for models that generate",
    "logits": "`apood embed` stores it for classifiers",
}


def open_store(folder: Path, detector: "type[Detector] | Detector") -> "TokenStore":
    """The store in `folder`, with those channels alone that the detector reads; a warning where it is not finished."""
    from apood.tokens.shard import StoreIndex
    from apood.tokens.store import TokenStore

    channels = sorted(detector.requires - {"tokens"})
    index = StoreIndex.read(folder)
    there = sorted(index.channels)
    for lacking in (channel for channel in channels if channel not in there):
        cure = f": {_CHANNEL_SOURCES[lacking]}" if lacking in _CHANNEL_SOURCES else ""
        raise InputError(
            f"The method {detector.name} needs {lacking}, which the token store {folder} lacks; it has "
            f"{', '.join(['tokens', *there])}{cure}."
        )
    warn_of_unfinished(folder, index)
    return TokenStore(folder, channels=channels)


def warn_of_unfinished(folder: Path, index: "StoreIndex") -> None:
    """Warns where the making of a store did not come to its end."""
    if index.unfinished:
        warnings.warn(unfinished(folder, index.sequences), DataWarning, stacklevel=2)


def unfinished(folder: Path, sequences: int) -> str:
    """What to say of a store whose making did not come to its end."""
    return (
        f"The token store {folder} is not complete: it was interrupted after {counted(sequences, 'sequence')}, or is "
        "still being written; the command that made it goes on with --resume."
    )


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


def are_sounds(inputs: Sequence[str]) -> bool:
    """Whether the inputs are sounds, by their endings."""
    from apood.data.sounds import holds_sounds

    return any(map(holds_sounds, inputs))


def refuse_other_kind(inputs: Sequence[str], model: str, *, takes_sounds: bool) -> None:
    """Refuses texts for a model that takes sounds, and the other way round."""
    from apood.data.sounds import SOUND_ENDINGS, holds_sounds

    sound = next(filter(holds_sounds, inputs), None)
    if takes_sounds and sound is None:
        raise InputError(
            f"The model {model!r} takes sounds, and {inputs[0]!r} holds none: allowed are folders of audio files and "
            f"{', '.join(SOUND_ENDINGS)}."
        )
    if sound is not None and not takes_sounds:
        raise InputError(f"The model {model!r} takes texts, but {sound!r} holds sounds.")


def text_records(
    inputs: Sequence[str],
    *,
    field: str | None,
    target_field: str | None,
    pairs: bool,
    allow_empty: bool,
    skip_bad: bool,
) -> "Iterator[Record | BadRecord]":
    """The texts of all inputs; refused when there are none, or when the first cannot be used."""
    from apood.data.inputs import read_records

    records = read_records(inputs, field=field, target_field=target_field, pairs=pairs, allow_empty=allow_empty)
    options = "--field and --target-field say" if pairs else "--field says"
    return _begun(records, f"There is no text in {', '.join(map(repr, inputs))}.", skip_bad, options)


def sound_records(inputs: Sequence[str], encoder: "AudioEncoder", *, skip_bad: bool) -> "Iterator[Record | BadRecord]":
    """The sounds of all inputs, as the encoder needs them; refused when the first cannot be used."""
    from apood.data.sounds import read_sounds

    records = read_sounds(inputs, rate=encoder.rate, least_samples=encoder.least_samples)
    return _begun(records, f"There is no sound in {', '.join(map(repr, inputs))}.", skip_bad)


def _begun(
    records: "Iterator[Record | BadRecord]", nothing: str, skip_bad: bool, options: str = ""
) -> "Iterator[Record | BadRecord]":
    """The same records, after a look at the first: before a model is loaded for nothing."""
    from apood.data.record import BadRecord, BadRecordError
    from apood.data.text_fields import LacksField

    first = next(records, None)
    if first is None:
        raise InputError(nothing)
    if isinstance(first, BadRecord) and not skip_bad:
        if isinstance(first, LacksField):  # all of them may, and then leaving them out is no cure
            raise InputError(f"{first.reason.rstrip('.')}; {options} which to read.")
        raise BadRecordError(first.reason)
    return chain([first], records)


def tell_skipped(count: int, first: "Sequence[BadRecord]") -> None:
    """Says on standard error which records were left out, or how many more than a few."""
    for record in first:
        typer.echo(f"Skipped: {record.reason}", err=True)
    if count > len(first):
        typer.echo(f"Skipped: {counted(count - len(first), 'more record')}.", err=True)


def encoder_of(detector: "Detector", model: str | None) -> "TextEncoder | AudioEncoder":
    """The encoder whose tokens the detector was fitted on, from `model` where its files are not where they were."""
    from apood.encoders.factory import reopen_encoder

    if detector.encoder_ is None:
        raise InputError(
            "The detector does not say which encoder its tokens came from, so it cannot score texts: "
            "embed them as those were, and give the store."
        )
    return reopen_encoder(detector.encoder_, model, channels=detector.requires)
