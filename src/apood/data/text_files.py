"""Reading texts from files: JSON lines, CSV, TSV, plain text, SGML segments and parallel text.

A line that cannot be used becomes a `BadRecord`, and reading goes on after it.
"""

import codecs
import csv
import gzip
import html
import itertools
import re
import select
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from apood.data.parquet import read_parquet
from apood.data.record import (
    DEFAULT_FIELD,
    BadRecord,
    Record,
    TextFields,
    describe_json_type,
    make_bad_record,
    make_sentence,
)
from apood.support.cloud import open_stream, parse_place
from apood.support.errors import InputError
from apood.support.files import parse_json

__all__ = [
    "MOST_BYTES",
    "TEXT_ENDINGS",
    "Reader",
    "can_be_cut",
    "choose_reader",
    "find_parallel_files",
    "read_line_range",
    "read_parallel_files",
    "read_stdin",
    "stdin_is_ready",
]

MOST_BYTES = 64 << 20
"""The largest size of one record, in bytes: a line, or a row of a table that may span several lines."""

_TOO_LONG = f"is longer than {MOST_BYTES >> 20} MiB, the limit for one record: split it"
_SKIPPED_BYTES = 1 << 20  # read at a time of a line that is too long
_SEGMENT_START = re.compile(r"<seg\b", re.IGNORECASE)
_SEGMENT_END = re.compile("</seg>", re.IGNORECASE)
_STDIN = "standard input"

Records = Iterator[Record | BadRecord]
Reader = Callable[[], Records]


class _Line(NamedTuple):
    """A line with its end. `problem` says why the line cannot be used, or is None if it can."""

    number: int
    text: str
    problem: str | None


def choose_reader(path: str, fields: TextFields, other_formats: str) -> Reader:
    """Return a function that reads the file. Its ending decides the format.

    Args:
        path: the file, or its address in a cloud store.
        fields: the fields that hold the texts.
        other_formats: what the message about an unknown ending says after the formats of texts.
    """
    endings = [ending.lower() for ending in Path(path).suffixes]
    if endings[-1:] == [".parquet"]:
        return partial(read_parquet, path, fields, MOST_BYTES)
    ending = next((e for e in reversed(endings) if e != ".gz"), "")
    if ending not in _LINE_READERS:
        raise InputError(
            f"The format of {path!r} is not known by its ending: allowed are {', '.join(_LINE_READERS)} "
            f"(each also with .gz) and .parquet for texts; {other_formats}."
        )
    if ending in _WITHOUT_FIELDS:
        _refuse_fields(repr(path), fields)
    return lambda: _LINE_READERS[ending](_read_lines(path), repr(path), fields)


def can_be_cut(path: str) -> bool:
    """Return whether `read_line_range` reads the file: every line of it is a record, and it is not compressed."""
    return Path(path).suffix.lower() in _CUT_READERS


def read_line_range(path: str, fields: TextFields, start: int, stop: int) -> Records:
    """Yield the records of the lines that begin at a byte from `start` to `stop` of a file that can be cut.

    The records of ranges that follow each other are those of the file, each once. Lines are counted from the start of
    the range, because what is before it is not read.
    """
    where = repr(path) if start == 0 else f"{path!r} from byte {start}"
    ending = Path(path).suffix.lower()
    if ending in _WITHOUT_FIELDS:
        _refuse_fields(repr(path), fields)
    yield from _CUT_READERS[ending](_read_lines(path, start, stop), where, fields)


def read_stdin(fields: TextFields) -> Records:
    """Yield the records of standard input: JSON lines if the first line looks like {...}, else one text per line."""
    lines = _decode(sys.stdin.buffer, _STDIN)
    head: list[_Line] = []
    for line in lines:
        head.append(line)
        if line.text.strip():
            break
    first = head[-1].text.strip() if head else ""
    is_json = first.startswith("{") and first.endswith("}")
    if not is_json and (first or fields.target is not None):
        _refuse_fields(_STDIN, fields)
    read = _read_json_lines if is_json else _read_plain
    yield from read(itertools.chain(head, lines), _STDIN, fields)


def stdin_is_ready() -> bool:
    """Return whether standard input can be read now; False if it would have to be waited for."""
    try:
        return bool(select.select([sys.stdin.buffer], [], [], 0)[0])
    except (OSError, ValueError):  # not a file of the system, or one that cannot be asked
        return True


def find_parallel_files(given: str) -> dict[str, str]:
    """Return the file of each language of `PREFIX:en-fr`: PREFIX.en and PREFIX.fr, which may be compressed (.gz)."""
    prefix, _, pair = given.rpartition(":")
    languages = pair.split("-")
    if not prefix or len(languages) != 2 or not all(languages) or languages[0] == languages[1]:
        raise InputError(
            "Parallel text is given as moses:PREFIX:SOURCE-TARGET, for example moses:corpus/EMEA.en-fr:en-fr, "
            f"got 'moses:{given}'."
        )
    files = {}
    for language in languages:
        path = f"{prefix}.{language}"
        found = next((name for name in (path, f"{path}.gz") if Path(name).is_file()), None)
        if found is None:
            raise InputError(f"There is no file {path!r}, nor {path + '.gz'!r}, which parallel text needs.")
        files[language] = found
    return files


def read_parallel_files(files: Mapping[str, str], fields: TextFields) -> Records:
    """Yield the lines of the source's file, or pairs of lines. Lines of the same number are translations."""
    for name in fields.names:
        if name not in files:
            raise InputError(
                f"{' and '.join(map(repr, files.values()))} have no field {name!r}: "
                f"there are {' and '.join(map(repr, files))}."
            )
    paths = [files[name] for name in fields.names]
    # Counted before the first pair: pairs that are shifted by a line look like good ones.
    counts = [sum(1 for _ in _read_lines(path)) for path in paths] if len(paths) > 1 else []
    if len(set(counts)) > 1:
        raise InputError(
            f"Line i of one file belongs to line i of the other, but {paths[0]!r} has {counts[0]:,} lines "
            f"and {paths[1]!r} has {counts[1]:,}."
        )
    for lines in zip(*map(_read_lines, paths), strict=True):
        wrong = next(((line, path) for line, path in zip(lines, paths, strict=True) if line.problem), None)
        if wrong:
            yield _refuse_line(wrong[0], repr(wrong[1]))
        else:
            texts = map(_strip_end, lines)
            place = f"line {lines[0].number} of {' and '.join(map(repr, paths))}"
            yield fields.make_record(dict(zip(fields.names, texts, strict=True)), place)


def _read_lines(path: str, start: int = 0, stop: int | None = None) -> Iterator[_Line]:
    """Yield the lines of a file; with `stop`, those that begin at a byte from `start` to `stop` of a plain file."""
    try:
        with open_stream(parse_place(path)) as file:
            if start:
                _refuse_utf16(file.read(2), repr(path))
                file.seek(start - 1)
                while (rest := file.readline(_SKIPPED_BYTES)) and not rest.endswith(b"\n"):
                    pass  # the end of a line that begins before `start`
            if stop is not None:
                yield from _decode(file, repr(path), stop)
                return
            plain = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if path.lower().endswith(".gz") else file
            yield from _decode(plain, repr(path))
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path!r} cannot be read ({error}).") from error


def _decode(file: BinaryIO, name: str, stop: int | None = None) -> Iterator[_Line]:
    """Yield the lines of a file, those that begin before `stop` if it is given.

    Of a line that is too long only `MOST_BYTES` are ever held in memory.
    """
    at_start = stop is None or file.tell() == 0
    for number in itertools.count(1):
        if stop is not None and file.tell() >= stop:
            return
        line = file.readline(MOST_BYTES + 1)
        if not line:
            return
        if number == 1 and at_start:
            _refuse_utf16(line, name)
        if len(line) > MOST_BYTES:
            ended = line.endswith(b"\n")
            del line
            yield _Line(number, "", _TOO_LONG)
            while not ended:
                rest = file.readline(_SKIPPED_BYTES)
                ended = not rest or rest.endswith(b"\n")
            continue
        encoding = "utf-8-sig" if number == 1 and at_start else "utf-8"
        try:
            yield _Line(number, line.decode(encoding), None)
        except UnicodeDecodeError as error:
            problem = f"is not UTF-8: byte {error.start + 1} of the line cannot be decoded"
            yield _Line(number, line.decode(encoding, errors="replace"), problem)


def _refuse_utf16(beginning: bytes, name: str) -> None:
    """Raise InputError if a file that begins like this is UTF-16: half of its lines would look like texts."""
    if beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError(make_sentence(f"{name} is not UTF-8, but UTF-16: write it in UTF-8"))


def _refuse_line(line: _Line, file: str) -> BadRecord:
    return make_bad_record(f"line {line.number} of {file}", str(line.problem))


def _refuse_fields(what: str, fields: TextFields) -> None:
    """Raise an error if the user named a field of an input that has none."""
    named = [name for name in (fields.target, fields.source, *fields.keep) if name not in (None, DEFAULT_FIELD)]
    if named:
        raise InputError(make_sentence(f"{what} has one text per line, so there is no field {named[0]!r}"))


def _strip_end(line: _Line) -> str:
    return line.text.removesuffix("\n").removesuffix("\r")


def _read_plain(lines: Iterable[_Line], file: str, fields: TextFields) -> Records:
    for line in lines:
        if line.problem is not None:
            yield _refuse_line(line, file)
        else:
            yield fields.make_plain_record(_strip_end(line), f"line {line.number} of {file}")


def _read_segments(lines: Iterable[_Line], file: str, fields: TextFields) -> Records:
    """Read the files of the WMT test sets: segments `<seg id="1">…</seg>`, one per line, between lines of markup."""
    for line in lines:
        place = f"line {line.number} of {file}"
        start = _SEGMENT_START.search(line.text)
        if line.problem is not None and (start or not line.text):
            yield _refuse_line(line, file)
        elif start:
            # The first tag decides: if it does not end, or its segment does not, no later one does.
            begin = line.text.find(">", start.end()) + 1
            end = _SEGMENT_END.search(line.text, begin) if begin else None
            if end is None:
                yield make_bad_record(place, "has a segment that does not end on its line")
                continue
            try:
                text = html.unescape(line.text[begin : end.start()]).strip()
            except ValueError:
                yield make_bad_record(place, "has a character reference with thousands of digits")
            else:
                yield fields.make_plain_record(text, place)


def _read_json_lines(lines: Iterable[_Line], file: str, fields: TextFields) -> Records:
    for line in lines:
        place = f"line {line.number} of {file}"
        if line.problem is not None:
            yield _refuse_line(line, file)
        elif line.text.strip():
            try:
                values = parse_json(line.text)
            except ValueError as error:
                yield make_bad_record(place, f"is not valid JSON ({error})")
                continue
            if isinstance(values, dict):
                yield fields.make_record(values, place)
            else:
                yield make_bad_record(place, f"must be a JSON object, got {describe_json_type(values)}")


def _read_json(lines: Iterable[_Line], file: str, fields: TextFields) -> Records:
    """Read one JSON array of objects or texts, or JSON lines: the first character decides."""
    first = next((line for line in lines if line.text.strip() or line.problem is not None), None)
    if first is None:
        return
    lines = itertools.chain([first], lines)
    if first.text.strip() == "{":
        raise InputError(
            f"{file} begins with an object of several lines: give one array of objects, or one object per line."
        )
    if not first.text.lstrip().startswith("["):
        yield from _read_json_lines(lines, file, fields)
        return
    parts, size = [], 0
    for line in lines:
        if line.problem is not None:
            raise InputError(_refuse_line(line, file).reason)
        size += len(line.text)
        if size > MOST_BYTES:
            raise InputError(
                f"The array in {file} has more than {MOST_BYTES >> 20} MiB: write one object per line instead (.jsonl)."
            )
        parts.append(line.text)
    try:
        items = parse_json("".join(parts))
    except ValueError as error:
        raise InputError(f"{file} is not valid JSON ({error}).") from error
    for number, item in enumerate(items, start=1):
        place = f"item {number} of {file}"
        if isinstance(item, dict):
            yield fields.make_record(item, place)
        elif isinstance(item, str):
            _refuse_fields(file, fields)
            yield fields.make_plain_record(item, place)
        else:
            yield make_bad_record(place, f"must be an object or a string, got {describe_json_type(item)}")


def _read_csv(lines: Iterable[_Line], file: str, fields: TextFields, delimiter: str | None = None) -> Records:
    """Read a table with a header. Without a `delimiter`, the header decides between commas and semicolons."""
    csv.field_size_limit(MOST_BYTES)  # the default refuses texts of 128 KiB
    if delimiter is None:
        lines = iter(lines)
        header = next(lines, None)
        lines = lines if header is None else itertools.chain([header], lines)
        delimiter = "," if header is None else _choose_delimiter(header.text, fields)
    wrong: list[_Line] = []  # lines of the current row that cannot be used
    size = 0  # of the current row so far

    def take_text(line: _Line) -> str:
        nonlocal size
        size += len(line.text)
        if line.problem is not None:
            wrong.append(line)
        if size > MOST_BYTES:  # such as after a quote that is never closed
            raise csv.Error(f"the row {_TOO_LONG}")
        return line.text

    rows = csv.reader(map(take_text, lines), delimiter=delimiter, strict=True)
    width, columns = 0, dict[str, int]()
    while True:
        place = f"line {rows.line_num + 1} of {file}"  # where the row begins; it may span several lines
        wrong.clear()
        size = 0
        bad = None
        try:
            row = next(rows, None)
        except csv.Error as error:
            row, bad = [], make_bad_record(place, f"is not valid CSV ({error})")
        if row is None:
            return
        if wrong:
            bad = _refuse_line(wrong[0], file)
        if bad and not width:  # a table without its header cannot be read at all
            raise InputError(bad.reason)
        if bad:
            yield bad
        elif row and not width:
            fields.refuse_missing(dict.fromkeys(row), f"the header of {file}")
            fields.refuse_doubled(row, f"the header of {file}")
            width, columns = len(row), {name: row.index(name) for name in fields.read}
        elif row and len(row) == width:
            yield fields.make_record({name: row[column] for name, column in columns.items()}, place)
        elif row:
            yield make_bad_record(place, f"has {len(row)} cells, but the header has {width}")


def _choose_delimiter(header: str, fields: TextFields) -> str:
    """Return a semicolon if only semicolons divide the header so that it has the field of the texts, else a comma."""
    by_comma, by_semicolon = ({name.strip().strip('"') for name in header.split(delimiter)} for delimiter in (",", ";"))
    return ";" if fields.source in by_semicolon and fields.source not in by_comma else ","


_WITHOUT_FIELDS = (".txt", ".sgm")
_LINE_READERS: dict[str, Callable[[Iterable[_Line], str, TextFields], Records]] = {
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": partial(_read_csv, delimiter="\t"),
    ".txt": _read_plain,
    ".sgm": _read_segments,
}
_CUT_READERS = {ending: _LINE_READERS[ending] for ending in (".jsonl", ".ndjson", ".txt")}

TEXT_ENDINGS = (*_LINE_READERS, ".gz", ".parquet")
"""The endings of files with texts."""
