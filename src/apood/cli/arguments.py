"""What commands take: parameters of a method, token stores, texts and sounds, and folders to write to."""

import types
import warnings
from collections.abc import Iterator, Sequence
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from apood.support.checks import format_count, suggest_name
from apood.support.errors import DataWarning, InputError
from apood.support.files import recover_folder

if TYPE_CHECKING:
    from apood.data.record import BadRecord, Record
    from apood.detectors.contract.base import Detector
    from apood.encoders.audio.encoder import AudioEncoder
    from apood.encoders.text.encoder import TextEncoder
    from apood.tokens.store import StoreIndex, TokenStore

__all__ = [
    "are_sounds",
    "check_input_kind",
    "default_parameters",
    "describe_unfinished",
    "format_parameter",
    "open_detector_encoder",
    "open_store",
    "parse_named_stores",
    "parse_settings",
    "read_sound_records",
    "read_text_records",
    "refuse_occupied",
    "report_skipped",
    "warn_if_unfinished",
]

_TRUTH = {"true": True, "false": False}
_KINDS = {types.NoneType: "null", bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_CHANNEL_SOURCES = {
    "token_logprobs": "`apood embed` stores it for causal language models, and in --mode output or reference",
    "sample_logprobs": "`apood embed` stores it with --samples, for models that generate",
    "logits": "`apood embed` stores it for classifiers",
}


def default_parameters(method: "type[Detector]") -> dict[str, Any]:
    """The parameters of a method with the values that they have when nobody sets them."""
    return {name: parameter.default for name, parameter in signature(method).parameters.items()}


def format_parameter(value: Any) -> str:
    """A parameter's value the way `--set` takes it; None is null, since `none` is often a choice of its own."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_settings(method: "type[Detector]", settings: Sequence[str]) -> dict[str, Any]:
    """The constructor's arguments that texts like `k=5` or `normalize=tokens` stand for."""
    allowed = default_parameters(method)
    annotations = get_type_hints(method.__init__)
    parsed: dict[str, Any] = {}
    for setting in settings:
        key, separator, text = setting.partition("=")
        if not separator:
            raise InputError(f"--set takes key=value, got {setting!r}.")
        if key not in allowed:
            listed = ", ".join(f"{name}={format_parameter(value)}" for name, value in allowed.items())
            there = f"there are {listed}" if listed else "it has none"
            raise InputError(f"The method {method.name} has no parameter {key!r}{suggest_name(key, allowed)}: {there}.")
        if key in parsed:
            raise InputError(f"The parameter {key!r} is set twice.")
        parsed[key] = _parsed(key, text, annotations[key])
    return parsed


def _parsed(key: str, text: str, annotation: Any) -> Any:
    choices = [choice for kind in _alternatives(annotation) for choice in _readings(kind, text)]
    if not choices:
        if not all(_is_written(kind) for kind in _alternatives(annotation)):
            raise InputError(f"{key} can be set in Python only: leave it out here, got {text!r}.")
        kinds = " or ".join(dict.fromkeys(_described(kind) for kind in _alternatives(annotation)))
        listed = [format_parameter(value) for kind in _alternatives(annotation) for value in get_args(kind)]
        raise InputError(f"{key} must be {kinds}, got {text!r}{suggest_name(text, listed)}.")
    return choices[0]


def _alternatives(annotation: Any) -> list[Any]:
    """The kinds that an annotation allows; text of any kind comes last, since everything reads as such."""
    union = get_origin(annotation) in (Union, types.UnionType)
    kinds = [kind for part in get_args(annotation) for kind in _alternatives(part)] if union else [annotation]
    return sorted(kinds, key=lambda kind: kind is str)


def _readings(kind: Any, text: str) -> list[Any]:
    """The value that `text` has as `kind`, or nothing."""
    if get_origin(kind) is Literal:
        return [value for value in get_args(kind) if format_parameter(value) == text]
    if kind is types.NoneType:
        return [None] if text.lower() in ("null", "none") else []
    if kind is bool:
        return [_TRUTH[text.lower()]] if text.lower() in _TRUTH else []
    if kind in (int, float, str):
        try:
            return [kind(text)]
        except ValueError:
            return []
    return []


def _is_written(kind: Any) -> bool:
    """Whether there is a text for a value of this kind."""
    return get_origin(kind) is Literal or kind in _KINDS


def _described(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(format_parameter(value) for value in get_args(kind))
    return _KINDS[kind]


def open_store(folder: Path, detector: "type[Detector] | Detector") -> "TokenStore":
    """The store in `folder`, with those channels alone that the detector reads; a warning where it is not finished."""
    from apood.tokens.store import StoreIndex, TokenStore

    channels = sorted(detector.requires - {"tokens"})
    index = StoreIndex.read(folder)
    there = sorted(index.channels)
    for lacking in (channel for channel in channels if channel not in there):
        cure = f": {_CHANNEL_SOURCES[lacking]}" if lacking in _CHANNEL_SOURCES else ""
        raise InputError(
            f"The method {detector.name} needs {lacking}, which the token store {folder} lacks; it has "
            f"{', '.join(['tokens', *there])}{cure}."
        )
    warn_if_unfinished(folder, index)
    return TokenStore(folder, channels=channels)


def warn_if_unfinished(folder: Path, index: "StoreIndex") -> None:
    """Warns where the making of a store did not come to its end."""
    if index.unfinished:
        warnings.warn(describe_unfinished(folder, index.sequences), DataWarning, stacklevel=2)


def describe_unfinished(folder: Path, sequences: int) -> str:
    """What to say of a store whose making did not come to its end."""
    return (
        f"The token store {folder} is not complete: it was interrupted after "
        f"{format_count(sequences, 'sequence')}, or is "
        "still being written; the command that made it goes on with --resume."
    )


def parse_named_stores(given: Sequence[str]) -> dict[str, Path]:
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


def check_input_kind(inputs: Sequence[str], model: str, *, takes_sounds: bool) -> None:
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


def read_text_records(
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


def read_sound_records(
    inputs: Sequence[str], encoder: "AudioEncoder", *, skip_bad: bool
) -> "Iterator[Record | BadRecord]":
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


def report_skipped(count: int, first: "Sequence[BadRecord]") -> None:
    """Says on standard error which records were left out, or how many more than a few."""
    for record in first:
        typer.echo(f"Skipped: {record.reason}", err=True)
    if count > len(first):
        typer.echo(f"Skipped: {format_count(count - len(first), 'more record')}.", err=True)


def open_detector_encoder(detector: "Detector", model: str | None) -> "TextEncoder | AudioEncoder":
    """The encoder whose tokens the detector was fitted on, from `model` where its files are not where they were."""
    from apood.encoders.factory import reopen_encoder

    if detector.encoder_ is None:
        raise InputError(
            "The detector does not say which encoder its tokens came from, so it cannot score texts: "
            "embed them as those were, and give the store."
        )
    return reopen_encoder(detector.encoder_, model, channels=detector.requires)


def refuse_occupied(target: Path, force: bool) -> None:
    """Only a detector may be replaced, and only on purpose: it may have been given a threshold since."""
    from apood.detectors.contract.artefact import refuse_foreign

    recover_folder(target)
    refuse_foreign(target)
    if not force and target.is_dir() and any(target.iterdir()):
        raise InputError(f"There is already a detector in {target}: choose another folder, or replace it with --force.")
