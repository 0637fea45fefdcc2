"""Parts of inputs that can be read independently of each other, by several machines at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from apood.data.hub import HubData
from apood.data.inputs import Request, choose_readers, find_files
from apood.data.parquet import list_row_groups, read_parquet
from apood.data.record import BadRecord, Record
from apood.data.text_files import MOST_BYTES, can_be_cut, read_line_range
from apood.support.cloud import CloudAddress, parse_place
from apood.support.errors import InputError

__all__ = ["FOLDER_ENDINGS", "Part", "find_parts", "read_part"]

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
    """

    name: str
    start: int = 0
    stop: int | None = None
    size: int = 0


def find_parts(inputs: Sequence[str], most_bytes: int) -> list[Part]:
    """Return the parts of all inputs, in order; they follow from the names and the sizes of the files alone.

    Files with one record per line are cut at about every `most_bytes` bytes, Parquet files between row groups, and data
    sets of the hub between their files. Any other input is one part, because it can only be read from its beginning:
    compressed files, tables, arrays, and objects in a cloud store. A folder stands for the files in it
    (`FOLDER_ENDINGS`), and a pattern for those that match it.

    Raises:
        InputError: if an input does not exist, or is standard input, which can be read only once.
    """
    parts: list[Part] = []
    for name in inputs:
        if name == "-":
            raise InputError("Standard input cannot be divided among workers: write the texts to a file first.")
        if isinstance(address := parse_place(name), CloudAddress):
            choose_readers(name, Request())  # raises an error if there is nothing, or nothing that can be read
            parts += [Part(str(found), size=size) for found, size in address.measure_sizes().items()]
            continue
        files = [str(file) for file in find_files(name, FOLDER_ENDINGS)]
        if not files:
            if Path(name).is_dir():
                raise InputError(f"The folder {name!r} has no files that end in {', '.join(FOLDER_ENDINGS)}.")
            parts += _cut_other(name)
        for file in files:
            parts += _cut_file(file, most_bytes)
    return parts


def _cut_other(name: str) -> list[Part]:
    """Return the parts of an input that is not a file."""
    if not name.startswith(_HUB):
        choose_readers(name, Request())  # raises an error if there is no such input
        return [Part(name)]
    files, size = _parse_hub(name).measure()
    return [Part(name, number, number + 1, size // files) for number in range(files)]


def _parse_hub(name: str) -> HubData:
    return HubData.parse(name.removeprefix(_HUB))


def _cut_file(path: str, most_bytes: int) -> list[Part]:
    size = Path(path).stat().st_size
    if path.lower().endswith(_PARQUET):
        return _cut_parquet(path, most_bytes)
    if can_be_cut(path):
        return [
            Part(path, at, min(at + most_bytes, size), min(most_bytes, size - at)) for at in range(0, size, most_bytes)
        ]
    return [Part(path, size=size)]


def _cut_parquet(path: str, most_bytes: int) -> list[Part]:
    """Return parts of one row group, or of several small ones."""
    parts: list[Part] = []
    first = size = 0
    groups = list_row_groups(path)
    for number, (_, own) in enumerate(groups):
        if number > first and size + own > most_bytes:
            parts.append(Part(path, first, number, size))
            first, size = number, 0
        size += own
    return [*parts, Part(path, first, len(groups), size)] if groups else []


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
