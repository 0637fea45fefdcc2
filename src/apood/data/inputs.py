"""Inputs as users write them: which files a name stands for, and which reader takes it."""

import glob
import itertools
import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from apood.data.conversations import Chat
from apood.data.record import DEFAULT_FIELD, BadRecord, Record, TextFields
from apood.data.text_files import (
    MOST_BYTES,
    Reader,
    choose_reader,
    find_parallel_files,
    read_parallel_files,
    read_stdin,
)
from apood.data.whole_files import ENDINGS, read_whole_files
from apood.support.checks import suggest_name
from apood.support.cloud import CloudAddress, name_locally, parse_place
from apood.support.errors import InputError

__all__ = [
    "AUDIO_ENDINGS", "SOUND_ENDINGS", "Request", "choose_readers", "find_files", "holds_sounds", "read_records",
    "refuse_repeated_stdin", "resolve_input", "shuffle_records",
]  # fmt: skip

AUDIO_ENDINGS = (".wav", ".flac")
"""The endings of files with one sound each."""

SOUND_ENDINGS = (*AUDIO_ENDINGS, ".npz")
"""The endings of all files with sounds."""

_STDIN = "-"
_MOST_OTHERS = 200_000  # paths in a folder before the first one that is wanted; the root of a disk has more


def read_records(
    inputs: Sequence[str],
    *,
    field: str | None = None,
    target_field: str | None = None,
    pairs: bool = False,
    allow_empty: bool = False,
    keep: Sequence[str] = (),
    chat: Chat | None = None,
) -> Iterator[Record | BadRecord]:
    """Return an iterator over the records of all inputs in order. They are read when they are asked for.

    An input is one of these:

    - a path, whose ending decides the format: .jsonl, .ndjson (one JSON object per line; blank lines are skipped),
      .json (the same, or one array of objects or texts), .csv (with commas or semicolons), .tsv (both with a header),
      .txt (one text per line), .sgm (one `<seg>` per line), each also with .gz, and .parquet. A pattern such as
      `data/**/*.jsonl` stands for the files that match it, sorted by path. Addresses such as `s3://bucket/data.jsonl`
      and `gs://bucket/*.jsonl` are read in the same way, as streams
    - `-`, standard input: JSON lines if its first line looks like an object, {...}, else one text per line
    - `hf:OWNER/NAME:SPLIT`, a data set of the Hugging Face hub (`apood.data.hub`)
    - `files:FOLDER`, one text per .txt or .md file in a folder and the folders below; or `files:` and a pattern
    - `moses:PREFIX:en-fr`, the two files PREFIX.en and PREFIX.fr, which are translations of each other line by line
    - `NAME:SPLIT` or `NAME:PATH`, a data set of the paper (`apood.data.presets`)

    Text is UTF-8. A record that cannot be used is yielded as a `BadRecord`. An input that cannot be used at all raises
    an `InputError`, before the first record if possible.

    Args:
        inputs: what to read.
        field: name of the field that holds the text. Dots lead into objects: `translation.en`. The default is the
            field of the preset, the source language of parallel text, otherwise "text".
        target_field: name of the field that holds the target. Each item is then a `Pair`.
        pairs: make each item a pair, with the target field of the preset or of the parallel text as the default.
        allow_empty: accept texts that are empty or only white space.
        keep: names of further fields, whose values the records keep.
        chat: which text of a conversation is taken, where a field holds a list of messages.
    """
    if not inputs:
        raise InputError("There is nothing to read: give at least one file, or - for standard input.")
    refuse_repeated_stdin(inputs)
    request = Request(field, target_field, pairs or target_field is not None, allow_empty, tuple(keep), chat)
    readers = [reader for name in inputs for reader in choose_readers(name, request)]
    return itertools.chain.from_iterable(reader() for reader in readers)


def refuse_repeated_stdin(inputs: Iterable[str | None]) -> None:
    """Raise InputError if standard input is more than one of the inputs, before any of them is read."""
    if list(inputs).count(_STDIN) > 1:
        raise InputError(
            "Standard input (-) can be read only once, and here it is needed more than once: write the texts to a "
            "file, and give its name."
        )


def shuffle_records(records: Iterable[Record | BadRecord], seed: int) -> Iterator[Record | BadRecord]:
    """Return the records in a random order that depends only on the seed. All are held in memory."""
    held = list(records)
    random.Random(seed).shuffle(held)
    return iter(held)


def find_files(name: str, inside: Collection[str] = ()) -> list[Path]:
    """Return the files that `name` stands for, sorted by path and each once.

    A name is a path or, if nothing exists there, a pattern such as `data/**/*.jsonl`. A folder stands for the files in
    it, and in the folders below, whose ending is in `inside`. Patterns and folders leave out hidden files.
    """
    name = name_locally(name)
    path = Path(name)
    # glob.glob, because Path.glob takes no absolute patterns and matches hidden files
    matches = [] if path.exists() else [Path(match) for match in glob.glob(name, recursive=True)]  # noqa: PTH207
    parts = path.parts
    if "**" in parts:
        given = next(number for number, part in enumerate(parts) if glob.has_magic(part))
        circular = {folder for folder in {match.parent for match in matches} if _goes_round(folder, given)}
        matches = [match for match in matches if match.parent not in circular]
    roots = [path] if path.exists() else matches
    wanted = itertools.chain.from_iterable(_walk(root, inside) for root in roots if inside and root.is_dir())
    return sorted({file for file in itertools.chain(roots, wanted) if file.is_file()})


def _goes_round(folder: Path, given: int) -> bool:
    """Return whether a pattern found a folder through a link to a folder that it is in, so that it finds files twice.

    The first `given` parts of the path were given without wildcards, so links among them are meant.
    """
    return any(
        place.is_symlink() and place.parent.resolve().is_relative_to(place.resolve())
        for place in (folder, *folder.parents)
        if len(place.parts) > given
    )


def _walk(root: Path, inside: Collection[str]) -> Iterator[Path]:
    """Yield the paths below a folder with such an ending; raise InputError if there are far more of other kinds."""
    found = 0
    for number, path in enumerate(root.rglob("*")):
        if path.suffix.lower() in inside and not path.name.startswith("."):
            found += 1
            yield path
        if not found and number == _MOST_OTHERS:
            raise InputError(
                f"None of the first {_MOST_OTHERS:,} files and folders in {str(root)!r} ends in "
                f"{' or '.join(sorted(inside))}: give the folder that holds the files."
            )


def resolve_input(name: str, folder: Path) -> str:
    """Return an input whose files lie below a folder; standard input, addresses and sets of the hub stay as they are.

    A file that declares inputs names them like this, relative to its own folder.
    """
    place = parse_place(name)
    if name == _STDIN or isinstance(place, CloudAddress):
        return name
    kind, colon, rest = name.partition(":")
    if colon:
        from apood.data.presets import PRESETS

        if kind == "hf" or (kind in PRESETS and PRESETS[kind].hub_id is not None):
            return name
        if kind in ("files", "moses") or kind in PRESETS:
            return f"{kind}:{folder / rest}"
    return str(folder / place)


def holds_sounds(name: str) -> bool:
    """Return whether an input is for `read_sounds`, by its ending or by the files that it stands for."""
    name = name_locally(name)
    if Path(name).suffix.lower() in SOUND_ENDINGS and not Path(name).is_dir():
        return True
    return any(file.suffix.lower() in SOUND_ENDINGS for file in find_files(name, AUDIO_ENDINGS))


@dataclass(frozen=True)
class Request:
    """The fields that the caller asked for, as `read_records` takes them; each kind of input has its own defaults."""

    field: str | None = None
    target_field: str | None = None
    pairs: bool = False
    allow_empty: bool = False
    keep: tuple[str, ...] = ()
    chat: Chat | None = None

    @property
    def options(self) -> str:
        """The options of commands that name these fields, for messages."""
        given = {"--field": True, "--target-field": self.pairs, "--keep": bool(self.keep)}
        return " and ".join(option for option, is_given in given.items() if is_given)

    def choose_fields(self, name: str, source: str = DEFAULT_FIELD, target: str | None = None) -> TextFields:
        """Return the fields of the input `name`, whose own fields are `source` and `target`."""
        source = self.field or source
        if not self.pairs:
            return TextFields(source, None, self.allow_empty, self.keep, self.chat)
        target = self.target_field or target
        if target is None:
            raise InputError(
                f"{name!r} does not say where its targets are: name their field, as target_field or --target-field."
            )
        return TextFields(source, target, self.allow_empty, self.keep, self.chat)


def choose_readers(name: str, request: Request) -> list[Reader]:
    """Return one reader per file, after a check that the input exists."""
    name = name_locally(name)
    place = parse_place(name)
    if isinstance(place, CloudAddress):
        readers = [_choose_reader(str(address), request) for address in place.find()]
        if not readers and place.is_dir():
            raise InputError(f"{name!r} is a folder: give its objects, for example {str(place / '*.jsonl')!r}.")
        if not readers:
            raise InputError(f"There is nothing at {name!r}.")
        return readers
    kind, colon, rest = name.partition(":")
    if name == _STDIN:
        return [partial(read_stdin, request.choose_fields("standard input"))]
    if not colon:
        return _choose_file_readers(name, request)
    if kind == "hf":
        from apood.data.hub import HubData

        return [partial(HubData.parse(rest).read, request.choose_fields(name))]
    if kind == "files":
        if not (found := find_files(rest, ENDINGS)):
            raise InputError(
                f"No file of {name!r} exists: of a folder, files that end in {' or '.join(ENDINGS)} are read."
            )
        return [partial(read_whole_files, found, request.choose_fields(name), MOST_BYTES)]
    if kind == "moses":
        files = find_parallel_files(rest)
        source = request.field or next(iter(files))
        target = next((language for language in reversed(files) if language != source), None)
        return [partial(read_parallel_files, files, request.choose_fields(name, source, target))]

    from apood.data.presets import PRESETS

    if kind not in PRESETS:
        return _choose_file_readers(name, request)
    preset = PRESETS[kind]
    request = replace(
        request,
        field=request.field or preset.field,
        target_field=(request.target_field or preset.target) if request.pairs else None,
    )
    given = preset.make_input(rest)
    try:
        return choose_readers(given, request)
    except InputError as error:
        if not preset.get:
            raise
        raise InputError(f"{str(error).rstrip('.')}; `apood datasets {kind}` says how to get the set.") from error


def _choose_file_readers(name: str, request: Request) -> list[Reader]:
    path = Path(name)
    if path.is_dir():
        raise InputError(
            f"{name!r} is a folder: give its files, for example {str(path / '*.jsonl')!r}, or {f'files:{name}'!r} "
            "if each file is one text."
        )
    if path.exists() and not path.is_file():
        raise InputError(
            f"{name!r} is a pipe, a socket or a device, and only regular files are read: "
            "give - to read standard input, or write the texts to a file first."
        )
    files = [name] if path.is_file() else [str(file) for file in find_files(name)]
    if not files:
        raise InputError(_explain_absence(name))
    return [_choose_reader(file, request) for file in files]


def _choose_reader(file: str, request: Request) -> Reader:
    return choose_reader(file, request.choose_fields(file), f"sounds are {', '.join(SOUND_ENDINGS)}")


def _explain_absence(name: str) -> str:
    from apood.data.presets import PRESETS

    if glob.has_magic(name):
        return f"No file matches {name!r}."
    if name in PRESETS:
        return f"There is no file {name!r}; the data set of that name is given as {PRESETS[name].usage!r}."
    kind, colon, _ = name.partition(":")
    return f"There is no file {name!r}{suggest_name(kind, PRESETS) if colon else ''}."
