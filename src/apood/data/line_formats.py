"""Texts from files that are read line by line: JSON lines, CSV, TSV, plain text and SGML segments.

A line that cannot be used becomes a `BadRecord`, and reading goes on behind it.
"""

import csv
import gzip
import html
import itertools
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from apood.data.record import BadRecord, Record
from apood.data.text_fields import DEFAULT_FIELD, TextFields, bad, json_kind, sentence
from apood.support.errors import InputError

__all__ = ["LINE_FORMATS", "WITHOUT_FIELDS", "not_utf8", "open_lines", "read_lines", "read_stdin", "refuse_fields"]

_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.IGNORECASE)


class Line(NamedTuple):
    """A line with its end; where bytes are not UTF-8 `wrong_byte` says where, and `text` has stand-ins for them."""

    number: int
    text: str
    wrong_byte: int | None


Lines = Iterator[Line]
Records = Iterator[Record | BadRecord]


def open_lines(path: str) -> Lines:
    """The lines of a file, compressed (.gz) or not."""
    try:
        with gzip.open(path) if path.lower().endswith(".gz") else Path(path).open("rb") as file:
            yield from _decoded(cast(BinaryIO, file))
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path!r} cannot be read ({error}).") from error


def _decoded(file: Iterable[bytes]) -> Lines:
    for number, line in enumerate(file, start=1):
        encoding = "utf-8-sig" if number == 1 else "utf-8"
        try:
            yield Line(number, line.decode(encoding), None)
        except UnicodeDecodeError as error:
            yield Line(number, line.decode(encoding, errors="replace"), error.start + 1)


def read_lines(path: str, ending: str, fields: TextFields) -> Records:
    """The records of a file whose format `ending` names."""
    yield from LINE_FORMATS[ending](open_lines(path), repr(path), fields)


def read_stdin(fields: TextFields) -> Records:
    """JSON lines if the first line looks like an object, {...}, else one text a line."""
    lines = _decoded(sys.stdin.buffer)
    head: list[Line] = []
    for line in lines:
        head.append(line)
        if line.text.strip():
            break
    first = head[-1].text.strip() if head else ""
    is_json = first.startswith("{") and first.endswith("}")
    if first and not is_json:
        refuse_fields("standard input", fields)
    read = _read_json_lines if is_json else _read_plain
    yield from read(itertools.chain(head, lines), "standard input", fields)


def refuse_fields(what: str, fields: TextFields) -> None:
    """Refuses a name that somebody gave for a field where there are none; the default may stand."""
    if fields.source != DEFAULT_FIELD:
        raise InputError(sentence(f"{what} has one text a line and no fields, so there is no field {fields.source!r}"))


def not_utf8(line: Line, place: str) -> BadRecord:
    """For a line that has a wrong byte."""
    return bad(place, f"is not UTF-8: byte {line.wrong_byte} of the line cannot be decoded")


def _read_plain(lines: Lines, file: str, fields: TextFields) -> Records:
    if fields.target is not None:
        raise InputError(sentence(f"{file} has one text a line, so there is no field {fields.target!r} for a target"))
    for line in lines:
        place = f"line {line.number} of {file}"
        if line.wrong_byte is not None:
            yield not_utf8(line, place)
        else:
            yield fields.plain(line.text.removesuffix("\n").removesuffix("\r"), place)


def _read_json_lines(lines: Lines, file: str, fields: TextFields) -> Records:
    for line in lines:
        place = f"line {line.number} of {file}"
        if line.wrong_byte is not None:
            yield not_utf8(line, place)
        elif line.text.strip():
            try:
                values = json.loads(line.text)
            except (ValueError, RecursionError) as error:
                yield bad(place, f"is not valid JSON ({error})")
                continue
            if isinstance(values, dict):
                yield fields.record(values, place)
            else:
                yield bad(place, f"must be a JSON object, got {json_kind(values)}")


def _read_csv(lines: Lines, file: str, fields: TextFields, delimiter: str = ",") -> Records:
    csv.field_size_limit(sys.maxsize)  # the default refuses texts of 128 KiB
    wrong: list[Line] = []  # lines of the present row that are not UTF-8

    def texts() -> Iterator[str]:
        for line in lines:
            if line.wrong_byte is not None:
                wrong.append(line)
            yield line.text

    rows = csv.reader(texts(), delimiter=delimiter, strict=True)
    width, columns = 0, dict[str, int]()
    while True:
        place = f"line {rows.line_num + 1} of {file}"  # where the row begins; it may go on over more
        wrong.clear()
        try:
            row = next(rows, None)
        except csv.Error as error:
            yield _or_raise(bad(place, f"is not valid CSV ({error})"), header=not width)
            continue
        if row is None:
            return
        if wrong:
            yield _or_raise(not_utf8(wrong[0], f"line {wrong[0].number} of {file}"), header=not width)
        elif row and not width:
            fields.refuse_absent(dict.fromkeys(row), f"the header of {file}")
            width, columns = len(row), {name: row.index(name) for name in fields.names()}
        elif row and len(row) == width:
            yield fields.record({name: row[column] for name, column in columns.items()}, place)
        elif row:
            yield bad(place, f"has {len(row)} cells, but the header has {width}")


def _or_raise(record: BadRecord, *, header: bool) -> BadRecord:
    """Without its header a table cannot be read at all."""
    if header:
        raise InputError(record.reason)
    return record


def _read_tsv(lines: Lines, file: str, fields: TextFields) -> Records:
    return _read_csv(lines, file, fields, delimiter="\t")


def _read_segments(lines: Lines, file: str, fields: TextFields) -> Records:
    """The files of the WMT test sets: a segment `<seg id="1">…</seg>` a line, between others that say what it is."""
    for record in _read_plain((line for line in lines if "<seg" in line.text.lower()), file, fields):
        if isinstance(record, BadRecord):
            yield record
        elif segment := _SEGMENT.search(record.item):
            yield fields.plain(html.unescape(segment[1]).strip(), record.place)
        else:
            yield bad(record.place, "has a segment that does not end on its line")


WITHOUT_FIELDS = (".txt", ".sgm")
LINE_FORMATS: dict[str, Callable[[Lines, str, TextFields], Records]] = {
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json": _read_json_lines,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".txt": _read_plain,
    ".sgm": _read_segments,
}
