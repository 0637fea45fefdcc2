"""Parallel text in the Moses format: two files, whose lines of the same number are translations of each other."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from apood.data.line_formats import not_utf8, open_lines
from apood.data.record import BadRecord, Record
from apood.data.text_fields import TextFields
from apood.support.errors import InputError

__all__ = ["Moses"]


@dataclass(frozen=True)
class Moses:
    """`PREFIX:en-fr` stands for the files PREFIX.en and PREFIX.fr, each of which may be compressed (.gz)."""

    files: dict[str, str]

    @classmethod
    def parse(cls, given: str) -> "Moses":
        """Finds both files."""
        prefix, colon, pair = given.rpartition(":")
        languages = pair.split("-")
        if not colon or not prefix or len(languages) != 2 or not all(languages) or languages[0] == languages[1]:
            raise InputError(
                f"Parallel text is given as moses:PREFIX:SOURCE-TARGET, as in moses:corpus/EMEA.en-fr:en-fr, "
                f"got 'moses:{given}'."
            )
        return cls({language: _existing(f"{prefix}.{language}") for language in languages})

    def other(self, language: str | None) -> str | None:
        """The language that is not the given one; without any, that of the targets."""
        return next((name for name in reversed(self.files) if name != language), None)

    def read(self, fields: TextFields) -> Iterator[Record | BadRecord]:
        """The lines of the source's file, and for pairs those of the target's beside them."""
        for name in fields.names():
            if name not in self.files:
                raise InputError(
                    f"{' and '.join(map(repr, self.files.values()))} have no field {name!r}: "
                    f"there are {' and '.join(map(repr, self.files))}."
                )
        paths = [self.files[name] for name in fields.names()]
        if len(paths) > 1:
            _refuse_unequal(*paths)
        for lines in zip(*map(open_lines, paths), strict=True):
            wrong = next(((line, path) for line, path in zip(lines, paths, strict=True) if line.wrong_byte), None)
            if wrong:
                yield not_utf8(wrong[0], f"line {wrong[0].number} of {wrong[1]!r}")
                continue
            texts = (line.text.removesuffix("\n").removesuffix("\r") for line in lines)
            place = f"line {lines[0].number} of {' and '.join(map(repr, paths))}"
            yield fields.record(dict(zip(fields.names(), texts, strict=True)), place)


def _existing(path: str) -> str:
    for candidate in (path, f"{path}.gz"):
        if Path(candidate).is_file():
            return candidate
    raise InputError(f"There is no file {path!r}, nor {path + '.gz'!r}, which parallel text needs.")


def _refuse_unequal(first: str, second: str) -> None:
    """Counted before any line is given out: pairs that slipped by a line cannot be told from good ones."""
    counts = [sum(1 for _ in open_lines(path)) for path in (first, second)]
    if counts[0] != counts[1]:
        raise InputError(
            f"Line i of one file belongs to line i of the other, but {first!r} has {counts[0]:,} lines "
            f"and {second!r} has {counts[1]:,}."
        )
