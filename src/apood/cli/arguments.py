"""The arguments of commands: parameters of a method, token stores, texts and sounds, folders to write to."""

import types
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from apood.cli.output import echo
from apood.support.checks import format_count, suggest_name
from apood.support.cloud import CloudAddress, Place, name_locally, refuse_file
from apood.support.errors import DataWarning, InputError
from apood.support.files import is_being_replaced, refuse_unwritable

if TYPE_CHECKING:
    from apood.data.conversations import Chat
    from apood.data.record import BadRecord, Record
    from apood.detectors.contract.base import Detector
    from apood.encoders.audio.encoder import AudioEncoder
    from apood.tokens.store import StoreIndex, TokenStore

__all__ = [
    "advise_to_skip",
    "are_sounds",
    "check_input_kind",
    "count_lines",
    "default_parameters",
    "describe_unfinished",
    "format_parameter",
    "is_default",
    "make_detector",
    "open_store",
    "parse_named_stores",
    "parse_settings",
    "read_sound_records",
    "read_text_records",
    "reads_pairs",
    "refuse_occupied",
    "report_skipped",
    "report_windows",
    "warn_if_unfinished",
]

_LINE_FORMATS = (".jsonl", ".ndjson", ".txt")
_TRUTH = {"true": True, "false": False}
_TYPE_NAMES = {types.NoneType: "null", bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_CHANNEL_SOURCES = {
    "token_logprobs": "`apood embed` stores it for causal language models, and in --mode output or reference",
    "sample_logprobs": "`apood embed` stores it with --samples, for models that generate",
    "logits": "`apood embed` stores it for classifiers",
    "summary": "`apood embed` stores it for texts",
    "sentences": "`apood embed` stores it for texts in --mode input",
}


def default_parameters(method: "type[Detector]") -> dict[str, Any]:
    """Return the parameters of a method with their default values."""
    return {name: parameter.default for name, parameter in signature(method).parameters.items()}


def format_parameter(value: Any) -> str:
    """Return a value as `--set` takes it. None is written as null, because "none" is a choice of some parameters."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_default(method: str) -> bool:
    """Return whether a method is the default one, which also has a name of its own."""
    from apood.detectors.contract.registry import DEFAULT

    return method in ("default", DEFAULT)


def make_detector(
    method: str,
    settings: Sequence[str],
    *,
    with_aux: bool,
    fast: bool = False,
    beginnings: bool = False,
    sentences: bool = False,
    on_ray: bool = False,
) -> "Detector":
    """Return a new detector, after a check of its parameters and of the options that only some methods have or need."""
    from apood.detectors.contract.registry import detector_class
    from apood.detectors.recommended import list_neighbours

    chosen = detector_class(method)
    given = parse_settings(chosen, settings)
    for option, wanted in (("--fast", fast), ("--beginnings", beginnings), ("--sentences", sentences)):
        if wanted and not is_default(method):
            raise InputError(f"{option} is for the default method: leave it out, or --method {method}.")
    given |= {"members": list_neighbours()} if fast else {}
    given |= {"beginnings": True} if beginnings else {}
    given |= {"sentences": True} if sentences else {}
    detector = chosen(**given)
    detector.check_parameters()
    if with_aux and detector.aux == "unused":
        raise InputError(f"The method {chosen.name} does not use auxiliary outliers: leave out --aux.")
    if not with_aux and detector.aux == "required":
        remedy = "choose --engine plain, and give some" if on_ray else "give some"
        raise InputError(f"The method {chosen.name} learns from auxiliary outliers: {remedy} with --aux.")
    return detector


def parse_settings(method: "type[Detector]", settings: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a constructor from texts such as `k=5` or `normalize=tokens`.

    The annotations of the constructor decide how a value is read.
    """
    allowed = default_parameters(method)
    annotations = _read_annotations(method) if settings else {}
    parsed: dict[str, Any] = {}
    for setting in settings:
        key, separator, text = setting.partition("=")
        if not separator:
            raise InputError(f"--set takes key=value, got {setting!r}.")
        if key not in allowed:
            listed = ", ".join(f"{name}={format_parameter(value)}" for name, value in allowed.items())
            choice = f"choose from {listed}" if listed else "it has none"
            hint = suggest_name(key, allowed, method.renamed_parameters)
            raise InputError(f"The method {method.name} has no parameter {key!r}{hint}: {choice}.")
        if key in parsed:
            raise InputError(f"The parameter {key!r} is set twice.")
        if key not in annotations:
            raise InputError(
                f"The parameter {key!r} of {method.name} can be set in Python only, because the constructor does not "
                f"say what it is: annotate it, as in `{key}: int`."
            )
        parsed[key] = _parse_value(key, text, annotations[key])
    return parsed


def _read_annotations(method: "type[Detector]") -> dict[str, Any]:
    try:
        return get_type_hints(method.__init__)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:  # of a class from elsewhere
        raise InputError(f"The constructor of {method.name} has an annotation that cannot be read: {error}.") from error


def _parse_value(key: str, text: str, annotation: Any) -> Any:
    types_allowed = _list_alternatives(annotation)
    for allowed in types_allowed:
        if values := _read_as(allowed, text):
            return values[0]
    if not all(get_origin(allowed) is Literal or allowed in _TYPE_NAMES for allowed in types_allowed):
        raise InputError(f"{key} can be set in Python only: leave it out here, got {text!r}.")
    described = " or ".join(dict.fromkeys(map(_describe_type, types_allowed)))
    choices = [format_parameter(value) for allowed in types_allowed for value in get_args(allowed)]
    raise InputError(f"{key} must be {described}, got {text!r}{suggest_name(text, choices)}.")


def _list_alternatives(annotation: Any) -> list[Any]:
    """Return the types that an annotation allows, with `str` last because every text can be read as a `str`."""
    is_union = get_origin(annotation) in (Union, types.UnionType)
    listed = [part for each in get_args(annotation) for part in _list_alternatives(each)] if is_union else [annotation]
    return sorted(listed, key=lambda each: each is str)


def _read_as(allowed: Any, text: str) -> list[Any]:
    """Return a list with the value of `text` as this type, or an empty list if it has none."""
    if get_origin(allowed) is Literal:
        return [value for value in get_args(allowed) if format_parameter(value) == text]
    if allowed is types.NoneType:
        return [None] if text.lower() in ("null", "none") else []
    if allowed is bool:
        return [_TRUTH[text.lower()]] if text.lower() in _TRUTH else []
    if allowed in (int, float, str):
        try:
            return [allowed(text)]
        except ValueError:
            return []
    return []


def _describe_type(allowed: Any) -> str:
    if get_origin(allowed) is Literal:
        return " or ".join(format_parameter(value) for value in get_args(allowed))
    return _TYPE_NAMES[allowed]


def open_store(given: str | Path, detector: "Detector", *, verify: bool = True, as_aux: bool = False) -> "TokenStore":
    """Return the store in a folder with only the channels that the detector can use. Warn if it is incomplete.

    Without `verify`, the hashes of its shards are not computed. With `as_aux` it holds AUX sequences to learn from.
    """
    from apood.tokens.store import StoreIndex, TokenStore, find_store

    folder = find_store(given)
    index = StoreIndex.read(folder)
    needed = sorted((detector.aux_requires if as_aux else detector.requires) - {"tokens"})
    for missing in (channel for channel in needed if channel not in index.channels):
        remedy = f": {_CHANNEL_SOURCES[missing]}" if missing in _CHANNEL_SOURCES else ""
        raise InputError(
            f"The method {detector.name} needs {missing}, which the token store {folder} lacks; it has "
            f"{', '.join(['tokens', *sorted(index.channels)])}{remedy}."
        )
    warn_if_unfinished(folder, index)
    channels = {*needed, *detector.welcomes.intersection(index.channels)}
    return TokenStore(folder, channels=sorted(channels), verify=verify)


def warn_if_unfinished(folder: Path, index: "StoreIndex") -> None:
    """Warn if a store was not written to its end."""
    if index.unfinished:
        warnings.warn(describe_unfinished(folder, index.sequences), DataWarning, stacklevel=2)


def describe_unfinished(folder: str | Path, sequences: int) -> str:
    """Return a sentence about a store that was not written to its end."""
    return (
        f"The token store {folder} is not complete: writing stopped after {format_count(sequences, 'sequence')}, or "
        "still goes on. To complete it, run the command that made it with --resume."
    )


def parse_named_stores(given: Sequence[str], kind: Literal["OOD", "new"] = "OOD") -> dict[str, str]:
    """Return names and folders from texts such as `news=stores/news`, the values of --ood or --new."""
    from apood.evaluation.result import MEAN

    option = f"--{kind.lower()}"
    named: dict[str, str] = {}
    for text in given:
        name, _, folder = text.partition("=")
        if not name or not folder:
            raise InputError(f"{option} takes NAME=STORE_OR_TEXTS, got {text!r}.")
        if name == MEAN:
            raise InputError(f"A set of {option} cannot be called {MEAN!r}: the mean over the sets has that name.")
        if name in named:
            raise InputError(f"Two {kind} sets are called {name!r}: give each its own name.")
        named[name] = folder
    return named


def are_sounds(inputs: Sequence[str]) -> bool:
    """Return whether the inputs are sounds, judged by the endings of their names."""
    from apood.data.inputs import holds_sounds

    return any(map(holds_sounds, inputs))


def reads_pairs(detector: "Detector", target_field: str | None) -> bool:
    """Return whether a detector takes pairs of texts. Raise InputError if it does not, and a target field is given."""
    mode = (detector.encoder_ or {}).get("mode")
    if target_field is not None and mode not in (None, "reference"):
        raise InputError(f"--target-field is for encoders of mode reference, but that of the detector has mode {mode}.")
    return mode == "reference" or target_field is not None


def check_input_kind(inputs: Sequence[str], model: str, *, takes_sounds: bool) -> None:
    """Raise an error if texts are given to a model that takes sounds, or sounds to one that takes texts."""
    from apood.data.inputs import SOUND_ENDINGS, holds_sounds

    sound = next(filter(holds_sounds, inputs), None)
    if takes_sounds and sound is None:
        raise InputError(
            f"The model {model!r} takes sounds, and {inputs[0]!r} has none: give a folder of audio files, or "
            f"files that end in {', '.join(SOUND_ENDINGS)}."
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
    keep: Sequence[str] = (),
    chat: "Chat | None" = None,
) -> "Iterator[Record | BadRecord]":
    """Return the texts of all inputs. Raise an error if there are none, or if the first cannot be used."""
    from apood.data.inputs import Request, read_records

    records = read_records(
        inputs, field=field, target_field=target_field, pairs=pairs, allow_empty=allow_empty, keep=keep, chat=chat
    )
    options = Request(pairs=pairs, keep=tuple(keep)).options
    named = ", ".join("standard input" if name == "-" else repr(name) for name in inputs)
    return _check_first(records, f"There is no text in {named}.", skip_bad, options)


def read_sound_records(
    inputs: Sequence[str], encoder: "AudioEncoder", *, skip_bad: bool
) -> "Iterator[Record | BadRecord]":
    """Return the sounds of all inputs. Raise an error if there are none, or if the first cannot be used."""
    from apood.data.sounds import read_sounds

    records = read_sounds(inputs, rate=encoder.rate, least_samples=encoder.least_samples)
    return _check_first(records, f"There is no sound in {', '.join(map(repr, inputs))}.", skip_bad)


def _check_first(
    records: "Iterator[Record | BadRecord]", nothing: str, skip_bad: bool, options: str = ""
) -> "Iterator[Record | BadRecord]":
    """Return the same records after a check of the first, so that bad input is refused before a model is loaded.

    With `skip_bad` there must be one good record.
    """
    from apood.data.record import BadRecord, BadRecordError, MissingField

    read: list[Record | BadRecord] = []
    for record in records:
        read.append(record)
        if not (skip_bad and isinstance(record, BadRecord)):
            break
    if not read:
        raise InputError(nothing)
    first, last = read[0], read[-1]
    if not isinstance(last, BadRecord):
        return chain(read, records)
    assert isinstance(first, BadRecord)
    reason = first.reason
    if isinstance(first, MissingField):  # probably all records lack it, so --skip-bad would not help
        reason = f"{reason.rstrip('.')}; name it with {options}."
    if skip_bad:
        which = "The only record cannot" if len(read) == 1 else f"None of the {len(read):,} records can"
        raise InputError(f"{which} be used: {reason}")
    raise InputError(reason) if isinstance(first, MissingField) else BadRecordError(reason)


@contextmanager
def advise_to_skip() -> Iterator[None]:
    """Add to the error of a bad record that --skip-bad skips such records."""
    from apood.data.record import BadRecordError

    try:
        yield
    except BadRecordError as error:
        raise InputError(f"{str(error).rstrip('.')}; skip such records with --skip-bad.") from error


def count_lines(inputs: list[str]) -> int | None:
    """Return about how many records there are; None if it is unknown."""
    paths = [Path(name_locally(name)) for name in inputs]
    if not all(path.is_file() and path.suffix in _LINE_FORMATS for path in paths):
        return None
    lines = 0
    for path in paths:
        last = b""
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                lines += block.count(b"\n")
                last = block
        lines += not last.endswith(b"\n") and bool(last)  # the last line may have no end
    return lines


def report_skipped(count: int, first: "Sequence[BadRecord]") -> None:
    """Print on standard error why the first records were skipped, and how many more there are."""
    for record in first:
        echo(f"Skipped: {record.reason}", err=True)
    if count > len(first):
        echo(f"Skipped: {format_count(count - len(first), 'more record')}.", err=True)


def report_windows(long: int, cut: int, limit: int) -> None:
    """Print on standard error how many inputs that were scored had several windows, or were cut at so many tokens."""
    if long:
        echo(f"{format_count(long, 'input')} had several windows, and the worst one decided.", err=True)
    if cut:
        echo(f"{format_count(cut, 'input')} had more than {limit:,} tokens: only the beginning was scored.", err=True)


def refuse_occupied(target: Place, force: bool | None = None) -> None:
    """Raise an error if the folder `target` holds something already, or if nothing can be written there.

    In a cloud store, the files of an interrupted upload do not count: the same command repeats it. `force` is for
    commands that write a detector: True lets them replace one, but nothing else.
    """
    if target.name in ("", ".."):
        raise InputError(f"{target} cannot be replaced as a whole: give the name of a folder in it.")
    if force is not None:
        from apood.detectors.contract.artefact import CONFIG_FILE, refuse_foreign

        refuse_foreign(target)
    if isinstance(target, CloudAddress):
        from apood.tokens.writer import is_free

        free = is_free(target) if force is None else not (target / CONFIG_FILE).exists()
    else:
        is_empty = not target.exists() or (target.is_dir() and not any(target.iterdir()))
        free = is_empty and not is_being_replaced(target)
    if not force and not free:
        refuse_file(target)
        remedy = "delete it first" if force is None else "replace the detector in it with --force"
        raise InputError(f"{target} already exists and is not empty: choose another folder, or {remedy}.")
    if isinstance(target, Path):
        refuse_unwritable(target)
