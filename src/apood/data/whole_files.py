"""Reading files of which each is one text, as in a folder of documents."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from apood.data.record import DEFAULT_FIELD, BadRecord, Record, TextFields, make_bad_record
from apood.support.errors import InputError
from apood.support.files import open_regular

__all__ = ["ENDINGS", "read_whole_files"]

ENDINGS = (".txt", ".md")
"""The endings of the files of a folder that are read; files that match a pattern may have any."""


def read_whole_files(files: Sequence[Path], fields: TextFields, most_bytes: int) -> Iterator[Record | BadRecord]:
    """Yield one text per file, without white space around it. A file of more than `most_bytes` is a bad record."""
    if fields.target is not None or fields.source != DEFAULT_FIELD or fields.keep:
        raise InputError("Each file is one text here, so there are no fields.")
    for file in files:
        place = repr(str(file))
        try:
            with open_regular(file) as opened:
                content = opened.read(most_bytes + 1)
        except OSError as error:
            raise InputError(f"{place} cannot be read ({error}).") from error
        if len(content) > most_bytes:
            yield make_bad_record(place, f"is larger than {most_bytes >> 20} MiB, the limit for one record: split it")
            continue
        try:
            yield fields.make_plain_record(content.decode("utf-8-sig").strip(), place)
        except UnicodeDecodeError as error:
            yield make_bad_record(place, f"is not UTF-8: byte {error.start + 1} cannot be decoded")
