"""Parts of inputs that can be read independently of each other, by several machines at once."""

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from apood.data.hub import HubData
from apood.data.inputs import Request, choose_readers, find_files
from apood.data.parquet import list_row_groups, read_parquet
from apood.data.presets import PRESETS
from apood.data.record import BadRecord, Record
from apood.data.text_files import MOST_BYTES, can_be_cut, find_parallel_files, read_line_range
from apood.data.whole_files import ENDINGS
from apood.support.background import map_concurrently
from apood.support.cloud import CloudAddress, parse_place
from apood.support.errors import InputError

__all__ = ["FOLDER_ENDINGS", "Part", "find_parts", "find_versions", "pin_input", "read_part"]

FOLDER_ENDINGS = (".parquet", ".jsonl", ".ndjson", ".txt", ".csv", ".tsv", ".gz")
"""The endings of the files that are read of a folder."""

_PARQUET, _HUB = ".parquet", "hf:"


@dataclass(frozen=True)
class Part:
    """A part of an input.

    Attributes:
        name: the file, or another input such as `hf:OWNER/NAME:SPLIT`.
        start: where the part begins: a byte of a file of lines, a row group of a Parquet file, a file of a data set of
            the hub; 0 for a whole input.
        stop: where the part ends; None for a whole input.
        size: its size in bytes, as far as it is known.
        version: what changes when the input is written again: the sizes and times of its files, or a commit of the hub.
    """

    name: str
    start: int = 0
    stop: int | None = None
    size: int = 0
    version: str = ""


def find_parts(inputs: Sequence[str], most_bytes: int) -> list[Part]:
    """Return the parts of all inputs, in order; they follow from the names, sizes and times of the files alone.

    Files with one record per line are cut at about every `most_bytes` bytes, Parquet files between row groups, and data
    sets of the hub between their files. Any other input is one part, because it can only be read from its beginning:
    compressed files, tables, arrays, and objects in a cloud store other than Parquet. A folder stands for the files in
    it (`FOLDER_ENDINGS`), and a pattern for those that match it.

    Raises:
        InputError: if an input does not exist, or is standard input, which can be read only once.
    """
    return [part for name in inputs for own in _cut_all(_list_whole(name), most_bytes) for part in own]


def find_versions(inputs: Sequence[str]) -> dict[str, str]:
    """Return the version of each file, object or other input that `find_parts` would cut now, by its name."""
    return {whole.name: whole.version for name in inputs for whole in _list_whole(name)}


def pin_input(name: str) -> str:
    """Return an input with the newest commit, if it is a data set of the hub, so that all workers read the same.

    The branch that the hub generates is left as it is: `datasets` reads it in another way than a commit.
    """
    kind, colon, rest = name.partition(":")
    given = PRESETS[kind].make_input(rest) if colon and kind in PRESETS else name
    if Path(name).exists() or not given.startswith(_HUB):
        return name
    data = _parse_hub(given)
    if data.is_exported or (commit := data.find_commit()) is None:
        return name
    return f"{name.removesuffix(f'@{data.revision}')}@{commit}"


def _list_whole(name: str) -> Iterator[Part]:
    """Yield what an input stands for, each as one part."""
    if name == "-":
        raise InputError("Standard input cannot be divided among workers: write the texts to a file first.")
    if isinstance(address := parse_place(name), CloudAddress):
        choose_readers(name, Request())  # raises an error if there is nothing, or nothing that can be read
        for found, state in address.describe_objects().items():
            yield _make_whole(str(found), state.size, state.written)
    elif files := find_files(name, FOLDER_ENDINGS):
        yield from map(_describe_file, files)
    elif Path(name).is_dir():
        raise InputError(f"The folder {name!r} has no files that end in {', '.join(FOLDER_ENDINGS)}.")
    else:
        yield _describe_other(name)


def _describe_other(name: str) -> Part:
    """Return an input that is not a file."""
    choose_readers(name, Request())  # raises an error if there is no such input
    kind, _, rest = name.partition(":")
    if kind in PRESETS:
        return _join(name, _list_whole(PRESETS[kind].make_input(rest)))
    if kind == "files":
        return _join(name, map(_describe_file, find_files(rest, ENDINGS)))
    if kind == "moses":
        return _join(name, map(_describe_file, map(Path, find_parallel_files(rest).values())))
    data = _parse_hub(name)
    if data.is_local:
        return _join(name, map(_describe_file, _find_visible(Path(data.path))))
    return Part(name, version=data.find_commit() or "")


def _find_visible(folder: Path) -> list[Path]:
    """Return the files in a folder that are not hidden. `datasets` reads no others, and git and desktops write them."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def _describe_file(path: Path) -> Part:
    about = path.stat()
    return _make_whole(str(path), about.st_size, about.st_mtime_ns)


def _make_whole(name: str, size: int, written: int) -> Part:
    return Part(name, size=size, version=f"{size}-{written}")


def _join(name: str, files: Iterable[Part]) -> Part:
    """Return an input that consists of several files as one part."""
    found = list(files)
    described = json.dumps([[file.name, file.version] for file in found])
    return Part(name, size=sum(file.size for file in found), version=hashlib.sha256(described.encode()).hexdigest())


def _parse_hub(name: str) -> HubData:
    return HubData.parse(name.removeprefix(_HUB))


def _cut_all(found: Iterable[Part], most_bytes: int) -> Iterator[Iterable[Part]]:
    """Yield the parts of each of several inputs."""
    for remote, wholes in itertools.groupby(found, _is_remote):
        if remote:  # a Parquet file takes some requests
            yield from map_concurrently(lambda whole: list(_cut(whole, most_bytes)), wholes)
        else:
            yield from (_cut(whole, most_bytes) for whole in wholes)


def _is_remote(whole: Part) -> bool:
    return isinstance(parse_place(whole.name), CloudAddress)


def _cut(whole: Part, most_bytes: int) -> Iterator[Part]:
    """Yield the parts of an input."""
    is_parquet = whole.name.lower().endswith(_PARQUET)
    if whole.name.startswith(_HUB):
        files, size = _parse_hub(whole.name).measure()
        for number in range(files):
            yield replace(whole, start=number, stop=number + 1, size=size // files)
    elif _is_remote(whole) and is_parquet and whole.size > most_bytes:
        yield from _cut_parquet(whole, most_bytes)
    elif not Path(whole.name).is_file():
        yield whole
    elif is_parquet:
        yield from _cut_parquet(whole, most_bytes)
    elif can_be_cut(whole.name):
        for start in range(0, whole.size, most_bytes):
            stop = min(start + most_bytes, whole.size)
            yield replace(whole, start=start, stop=stop, size=stop - start)
    else:
        yield whole


def _cut_parquet(whole: Part, most_bytes: int) -> Iterator[Part]:
    """Yield parts of one row group, or of several small ones."""
    first = size = 0
    groups = list_row_groups(whole.name)
    for number, (_, own) in enumerate(groups):
        if number > first and size + own > most_bytes:
            yield replace(whole, start=first, stop=number, size=size)
            first, size = number, 0
        size += own
    if groups:
        yield replace(whole, start=first, stop=len(groups), size=size)


def read_part(part: Part, request: Request) -> Iterator[Record | BadRecord]:
    """Yield the records of a part."""
    if part.stop is None:
        for reader in choose_readers(part.name, request):
            yield from reader()
    elif part.name.startswith(_HUB):
        yield from _parse_hub(part.name).read(request.choose_fields(part.name), part.start)
    elif part.name.lower().endswith(_PARQUET):
        yield from read_parquet(part.name, request.choose_fields(part.name), MOST_BYTES, (part.start, part.stop))
    else:
        yield from read_line_range(part.name, request.choose_fields(part.name), part.start, part.stop)
