"""From what a user names as input to records: which reader, and which fields."""

import glob
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from apood.data.hub import HubData
from apood.data.line_formats import LINE_FORMATS, WITHOUT_FIELDS, read_lines, read_stdin, refuse_fields
from apood.data.moses import Moses
from apood.data.parquet import read_parquet
from apood.data.presets import PRESETS
from apood.data.record import BadRecord, Record
from apood.data.sounds import SOUND_ENDINGS
from apood.data.text_fields import DEFAULT_FIELD, TextFields
from apood.support.checks import suggest_name
from apood.support.errors import InputError

__all__ = ["read_records", "shuffled"]

_STDIN = "-"
_GLOB = frozenset("*?[")
Reader = Callable[[], Iterator[Record | BadRecord]]


def read_records(
    inputs: Sequence[str],
    *,
    field: str | None = None,
    target_field: str | None = None,
    pairs: bool = False,
    allow_empty: bool = False,
) -> Iterator[Record | BadRecord]:
    """The records of all inputs in order, read as they are asked for.

    An input is one of these:

    - a path, whose ending decides the format: .jsonl, .ndjson, .json (one JSON object a line; blank lines are
      skipped), .csv, .tsv (with a header), .txt (one text a line), .sgm (one `<seg>` a line), each also with .gz, and
      .parquet. A pattern such as `data/**/*.jsonl` stands for the files that match it, sorted
    - `-`, standard input: JSON lines if its first line looks like an object, {...}, else one text a line
    - `hf:OWNER/NAME:SPLIT`, a data set of the Hugging Face hub (`apood.data.hub`)
    - `moses:PREFIX:en-fr`, the two files PREFIX.en and PREFIX.fr, line by line translations of each other
    - `NAME:SPLIT` or `NAME:PATH`, a data set of the paper (`apood.data.presets`)

    Text is UTF-8. A record that cannot be used is given out as a `BadRecord`; what makes a whole input unusable raises
    an `InputError`, before the first record if that can be told without reading.

    Args:
        inputs: what to read.
        field: name of the field that holds the text; dots lead into objects, as in `translation.en`. By default that
            of the preset, the source language of parallel text, otherwise "text".
        target_field: the same for the target. Items are then a `Pair` each.
        pairs: items are pairs, with the target where the preset or the parallel text has it.
        allow_empty: take texts without anything but white space for records too.
    """
    if not inputs:
        raise InputError("There is nothing to read: give at least one file, or - for standard input.")
    if list(inputs).count(_STDIN) > 1:
        raise InputError("Standard input (-) can be read only once, but it is given more than once.")
    wanted = _Wanted(field, target_field, pairs or target_field is not None, allow_empty)
    readers = [reader for name in inputs for reader in _readers(name, wanted)]
    return itertools.chain.from_iterable(reader() for reader in readers)


def shuffled(records: Iterable[Record | BadRecord], seed: int) -> Iterator[Record | BadRecord]:
    """The records in an order that only the seed decides; all of them are held in memory for it."""
    held = list(records)
    random.Random(seed).shuffle(held)
    return iter(held)


@dataclass(frozen=True)
class _Wanted:
    """What the caller asked for, to which each input has its own defaults."""

    field: str | None
    target_field: str | None
    pairs: bool
    allow_empty: bool

    def fields(self, name: str, default: str = DEFAULT_FIELD, target: str | None = None) -> TextFields:
        source = self.field or default
        if not self.pairs:
            return TextFields(source, None, self.allow_empty)
        target = self.target_field or target
        if target is None:
            raise InputError(
                f"{name!r} does not say where its targets are: name their field, as target_field or --target-field."
            )
        return TextFields(source, target, self.allow_empty)


def _readers(name: str, wanted: _Wanted) -> list[Reader]:
    """How the input is read, after a look at what is there: one reader a file."""
    kind, colon, rest = name.partition(":")
    if name == _STDIN:
        return [partial(read_stdin, wanted.fields("standard input"))]
    if colon and kind == "hf":
        return [partial(HubData.parse(rest).read, wanted.fields(name))]
    if colon and kind == "moses":
        moses = Moses.parse(rest)
        source = wanted.field or next(iter(moses.files))
        return [partial(moses.read, wanted.fields(name, source, moses.other(source)))]
    if colon and kind in PRESETS:
        preset = PRESETS[kind]
        own = replace(
            wanted,
            field=wanted.field or preset.field,
            target_field=(wanted.target_field or preset.target) if wanted.pairs else None,
        )
        full = preset.stands_for(rest)
        try:
            return _readers(full, own)
        except InputError as error:
            if not preset.get:
                raise
            raise InputError(f"{str(error).rstrip('.')}; `apood datasets {kind}` says how to get the set.") from error
    return [_file_reader(path, wanted.fields(path)) for path in _files(name)]


def _files(name: str) -> list[str]:
    """The file itself, or those that the pattern matches."""
    path = Path(name)
    if path.is_dir():
        raise InputError(f"{name!r} is a folder: give the files in it, as in {str(path / '*.jsonl')!r}.")
    if path.is_file():
        return [name]
    if _GLOB.intersection(name):
        matches = glob.glob(name, recursive=True)  # noqa: PTH207 Path.glob would take hidden files too
        found = sorted(match for match in matches if Path(match).is_file())
        if not found:
            raise InputError(f"No file matches {name!r}.")
        return found
    if name in PRESETS:
        preset = PRESETS[name]
        raise InputError(f"There is no file {name!r}; the data set of that name is given as {preset.usage!r}.")
    kind, colon, _ = name.partition(":")
    raise InputError(f"There is no file {name!r}{suggest_name(kind, PRESETS) if colon else ''}.")


def _file_reader(name: str, fields: TextFields) -> Reader:
    endings = [ending.lower() for ending in Path(name).suffixes]
    if endings[-1:] == [".parquet"]:
        return partial(read_parquet, name, fields)
    ending = next((e for e in reversed(endings) if e != ".gz"), "")
    if ending not in LINE_FORMATS:
        raise InputError(
            f"The format of {name!r} is not known by its ending: allowed are {', '.join(LINE_FORMATS)} "
            f"(each also with .gz) and .parquet for texts; sounds are {', '.join(SOUND_ENDINGS)}."
        )
    if ending in WITHOUT_FIELDS:
        refuse_fields(repr(name), fields)
    return partial(read_lines, name, ending, fields)
