"""Texts from files and from standard input, one after the other, with the place of whatever cannot be read."""

import csv
import gzip
import itertools
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from apood.support.errors import InputError

__all__ = ["read_texts"]

_STDIN = "-"
Line = tuple[int, str]


def read_texts(inputs: Sequence[str], field: str = "text") -> Iterator[str]:
    """The texts of all inputs in order, read as they are asked for.

    An input is a path, or "-" for standard input. The ending of a path decides its format, and each of the
    first four may be compressed (.gz):

    - .jsonl, .ndjson, .json: one JSON object a line, the text in `field`; blank lines are skipped
    - .csv, .tsv: a header line, the text in the column `field`
    - .txt: one text a line, blank lines included
    - .parquet: the text in the column `field`
    - standard input: JSON lines if its first line looks like a JSON object, {...}, else one text a line

    Text files are UTF-8. What can be told without reading (a missing file, an unknown ending) is refused
    before the first text.
    """
    if not inputs:
        raise InputError("There is nothing to read: give at least one file, or - for standard input.")
    if list(inputs).count(_STDIN) > 1:
        raise InputError("Standard input (-) can be read only once, but it is given more than once.")
    readers = [_reader(name) for name in inputs]
    return itertools.chain.from_iterable(reader(name, field) for reader, name in zip(readers, inputs, strict=True))


def _reader(name: str) -> Callable[[str, str], Iterator[str]]:
    """How the input is read, after a look at what is there."""
    if name == _STDIN:
        return _read_stdin
    path = Path(name)
    if path.is_dir():
        raise InputError(f"{name!r} is a folder: give the files in it.")
    if not path.is_file():
        raise InputError(f"There is no file {name!r}.")
    endings = [ending.lower() for ending in path.suffixes]
    if endings[-1:] == [".parquet"]:
        return _read_parquet
    read = _LINE_FORMATS.get(next((e for e in reversed(endings) if e != ".gz"), ""))
    if read is None:
        raise InputError(
            f"The format of {name!r} is not known by its ending: allowed are {', '.join(_LINE_FORMATS)} "
            "(each also with .gz) and .parquet."
        )
    return lambda name, field: _read_file(name, field, read)


def _read_file(name: str, field: str, read: Callable[[Iterator[Line], str, str], Iterator[str]]) -> Iterator[str]:
    try:
        with gzip.open(name) if name.lower().endswith(".gz") else Path(name).open("rb") as file:
            yield from read(_lines(file, name), name, field)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{name!r} cannot be read ({error}).") from error


def _read_stdin(_name: str, field: str) -> Iterator[str]:
    place = "standard input"
    lines = _lines(sys.stdin.buffer, place)
    head: list[Line] = []
    for line in lines:
        head.append(line)
        if line[1].strip():
            break
    first = head[-1][1].strip() if head else ""
    read = _read_json_lines if first.startswith("{") and first.endswith("}") else _read_plain
    yield from read(itertools.chain(head, lines), place, field)


def _lines(file: Iterable[bytes], place: str) -> Iterator[Line]:
    """Numbered lines with their ends; decoded one by one, so that a wrong byte has an exact position."""
    position = 0
    for number, line in enumerate(file, start=1):
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{place!r} is not UTF-8: byte {position + error.start} (line {number}) cannot be decoded."
            ) from error
        position += len(line)


def _read_plain(lines: Iterator[Line], _place: str, _field: str) -> Iterator[str]:
    for _, line in lines:
        yield line.removesuffix("\n").removesuffix("\r")


def _read_json_lines(lines: Iterator[Line], place: str, field: str) -> Iterator[str]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"Line {number} of {place!r} is not valid JSON ({error}).") from error
        if not isinstance(record, dict):
            raise InputError(f"Line {number} of {place!r} must be a JSON object, got {_json_kind(record)}.")
        if field not in record:
            _refuse_field(field, f"Line {number} of {place!r}", list(record))
        if not isinstance(record[field], str):
            raise InputError(
                f"Field {field!r} in line {number} of {place!r} must be a string, got {_json_kind(record[field])}."
            )
        yield record[field]


def _read_csv(lines: Iterator[Line], place: str, field: str, delimiter: str = ",") -> Iterator[str]:
    csv.field_size_limit(sys.maxsize)  # the default refuses texts of 128 KiB
    rows = csv.reader((line for _, line in lines), delimiter=delimiter, strict=True)
    column, width = None, 0
    try:
        for row in rows:
            if not row:
                continue
            if column is None:
                if field not in row:
                    _refuse_field(field, f"The header of {place!r}", row)
                column, width = row.index(field), len(row)
                continue
            if len(row) != width:
                raise InputError(
                    f"The row that ends in line {rows.line_num} of {place!r} has {len(row)} cells, "
                    f"but the header has {width}."
                )
            yield row[column]
    except csv.Error as error:
        raise InputError(f"Line {rows.line_num} of {place!r} is not valid CSV ({error}).") from error


def _read_tsv(lines: Iterator[Line], place: str, field: str) -> Iterator[str]:
    return _read_csv(lines, place, field, delimiter="\t")


def _read_parquet(name: str, field: str) -> Iterator[str]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(f"Reading {name!r} needs the package pyarrow: pip install 'apood[hf]'.") from error
    try:
        with pyarrow.parquet.ParquetFile(name) as file:
            if field not in file.schema_arrow.names:
                _refuse_field(field, f"{name!r}", file.schema_arrow.names)
            row = 0
            for batch in file.iter_batches(batch_size=1024, columns=[field]):
                for text in batch.column(0).to_pylist():
                    row += 1
                    if not isinstance(text, str):
                        raise InputError(
                            f"Field {field!r} in row {row} of {name!r} must be a string, got {_json_kind(text)}."
                        )
                    yield text
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name!r} cannot be read as Parquet ({error}).") from error


def _refuse_field(field: str, where: str, there: list[str]) -> NoReturn:
    raise InputError(f"{where} has no field {field!r}: there are {', '.join(map(repr, there)) or 'none'}.")


def _json_kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


_LINE_FORMATS: dict[str, Callable[[Iterator[Line], str, str], Iterator[str]]] = {
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json": _read_json_lines,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".txt": _read_plain,
}
