"""Reading scores that were computed before, perhaps with the verdicts of reviewers: rows, as `apood score` writes them.

The first line decides the format: JSON lines if it is an object, one score per line if it is a number, else a table in
CSV with a header. Rows are read one by one, so that a pipe can be watched.
"""

import csv
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

from apood.data.record import BadRecord, Record, describe_json_type, make_bad_record
from apood.support.checks import shorten
from apood.support.cloud import open_stream, parse_place
from apood.support.errors import InputError
from apood.support.files import parse_json

__all__ = ["Reviewed", "read_reviewed", "read_scores"]

_SCORE, _VERDICT, _PROBABILITY = "score", "verdict", "probability"
_VERDICTS = {"id": True, "ood": False}
_OTHER_ENDINGS = (".parquet", ".gz")
_LONGEST = 1 << 20  # bytes of a line, which may hold more than a score
_TOO_LONG = f"is longer than {_LONGEST >> 20} MiB"

Row = Mapping[str, Any]


class Reviewed(NamedTuple):
    """A score with what a reviewer said.

    Attributes:
        score: the score of the input.
        is_id: whether the reviewer called the input in-distribution.
        probability: the probability with which the input was chosen for review.
    """

    score: float
    is_id: bool
    probability: float


def read_scores(name: str) -> Iterator[Record | BadRecord]:
    """Return an iterator over the scores of a file, or of standard input if the name is `-`.

    A score of null, or without a number in a table, is -inf, as `apood score` writes it.
    """
    return _read_records(name, _find_score)


def read_reviewed(name: str) -> Iterator[Record | BadRecord]:
    """Return an iterator over scores with verdicts (`Reviewed`). A row without a probability has 1."""
    return _read_records(name, _find_reviewed)


def _read_records(name: str, find: Callable[[Row], Any]) -> Iterator[Record | BadRecord]:
    """Yield what `find` finds in each row."""
    file = "standard input" if name == "-" else repr(name)
    for number, row in _read_rows(_decode(_read_lines(name))):
        place = f"line {number} of {file}"
        try:
            if isinstance(row, str):
                raise _BadRowError(row)
            record: Record | BadRecord = Record(find(row), place)
        except _BadRowError as error:
            record = make_bad_record(place, str(error))
        yield record


class _BadRowError(Exception):
    """A row cannot be used; the message says why, as a sentence that begins with its place."""


class _Line(NamedTuple):
    """A line without the white space around it. `problem` says why it cannot be used, or is None if it can."""

    number: int
    text: str
    problem: str | None


def _read_lines(name: str) -> Iterator[bytes]:
    place = parse_place(name)
    if name != "-" and not place.is_file():
        what = "is not a regular file" if place.exists() else "does not exist"
        raise InputError(f"{name!r} {what}: give a file of scores, or - for standard input.")
    if place.suffix.lower() in _OTHER_ENDINGS:
        raise InputError(f"The scores in {name!r} cannot be read: give JSON lines, CSV, or one score per line.")
    source = nullcontext(sys.stdin.buffer) if name == "-" else open_stream(place)
    with source as file:
        while line := file.readline(_LONGEST + 1):
            yield line
            while len(line) > _LONGEST and not line.endswith(b"\n"):  # the rest of a line that is too long
                line = file.readline(_LONGEST + 1) or b"\n"


def _decode(lines: Iterable[bytes]) -> Iterator[_Line]:
    for number, line in enumerate(lines, start=1):
        if len(line) > _LONGEST:
            yield _Line(number, "", _TOO_LONG)
            continue
        try:
            yield _Line(number, line.decode("utf-8-sig").strip(), None)
        except UnicodeDecodeError as error:
            yield _Line(number, "", f"is not UTF-8: byte {error.start + 1} of the line cannot be decoded")


def _read_rows(lines: Iterator[_Line]) -> Iterator[tuple[int, Row | str]]:
    """Yield the number of the first line of each row, and the row, or why it cannot be used."""
    for line in lines:
        if line.problem is not None:
            yield line.number, line.problem
        elif line.text:
            yield from _choose_reader(line.text)(itertools.chain([line], lines))


def _choose_reader(first: str) -> Callable[[Iterable[_Line]], Iterator[tuple[int, Row | str]]]:
    if first.startswith("{"):
        return partial(_read_single_lines, parse=_parse_json)
    return _read_table if _as_number(first) is None else partial(_read_single_lines, parse=_parse_plain)


def _read_single_lines(lines: Iterable[_Line], parse: Callable[[str], Row | str]) -> Iterator[tuple[int, Row | str]]:
    for line in lines:
        if line.problem is not None:
            yield line.number, line.problem
        elif line.text:
            yield line.number, parse(line.text)


def _parse_json(text: str) -> Row | str:
    try:
        row = parse_json(text)
    except ValueError as error:
        return f"is not valid JSON ({error})"
    return row if isinstance(row, dict) else f"must be a JSON object, got {describe_json_type(row)}"


def _parse_plain(text: str) -> Row:
    return {_SCORE: text}


def _read_table(lines: Iterable[_Line]) -> Iterator[tuple[int, Row | str]]:
    """Read a table in CSV with a header. A row has several lines if a kept text has."""
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST))  # the default refuses texts of 128 KiB
    lines = iter(lines)
    taken: list[_Line] = []  # the lines of the current row
    size = 0  # of them

    def take_text(line: _Line) -> str:
        nonlocal size
        taken.append(line)
        size += len(line.text) + 1
        if size > _LONGEST:  # such as after a quote that is never closed
            raise csv.Error(f"the row {_TOO_LONG}")
        return f"{line.text}\n"

    rows = csv.reader(map(take_text, lines), strict=True)
    columns: list[str] = []
    while True:
        taken.clear()
        size = 0
        cells, problem, broken = None, None, False
        try:
            cells = next(rows, None)
        except csv.Error as error:
            problem, broken = f"is not valid CSV ({error})", True
        unreadable = next((place for place, line in enumerate(taken) if line.problem is not None), None)
        if unreadable is not None:
            problem = taken[unreadable].problem
        if problem is not None:
            yield taken[0].number, problem
            if broken:  # what follows a quote that is never closed is read as rows of its own
                lines = itertools.chain(taken[(unreadable or 0) + 1 :], lines)
                rows = csv.reader(map(take_text, lines), strict=True)
        elif cells is None:
            return
        elif not columns:
            columns = cells
        elif cells and len(cells) != len(columns):
            yield taken[0].number, f"has {len(cells)} cells, but the header has {len(columns)}"
        elif cells:
            yield taken[0].number, {name: cell or None for name, cell in zip(columns, cells, strict=True)}


def _find_score(row: Row) -> float:
    _refuse_missing(row, _SCORE)
    if row[_SCORE] is None:
        return -math.inf
    if (score := _as_number(row[_SCORE])) is None:
        raise _BadRowError(f"must have a number as its {_SCORE}, got {_show(row[_SCORE])}")
    return score


def _refuse_missing(row: Row, name: str) -> None:
    if name not in row:
        raise _BadRowError(f"has no field {name!r}: there are {', '.join(map(repr, row)) or 'none'}")


def _find_reviewed(row: Row) -> Reviewed:
    score, verdict = _find_score(row), row.get(_VERDICT)
    _refuse_missing(row, _VERDICT)
    if not isinstance(verdict, str) or verdict.lower() not in _VERDICTS:
        raise _BadRowError(f"must have ID or OOD as its {_VERDICT}, got {_show(verdict)}")
    probability = _as_number(row.get(_PROBABILITY, 1.0))
    if probability is None or not 0 < probability <= 1:
        given = _show(row[_PROBABILITY])
        raise _BadRowError(f"must have a number above 0 and at most 1 as its {_PROBABILITY}, got {given}")
    return Reviewed(score, _VERDICTS[verdict.lower()], probability)


def _as_number(value: Any) -> float | None:
    """Return a number, which tables hold as a text; None if it is none, or NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number


def _show(value: Any) -> str:
    return shorten(value) if isinstance(value, str | int | float) else describe_json_type(value)
