"""Records: what an input holds, item by item, and which fields of a row the texts are taken from."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apood.data.conversations import Chat, ConversationError, choose_text, read_messages
from apood.support.checks import suggest_name
from apood.support.errors import InputError

__all__ = [
    "DEFAULT_FIELD", "MOST_REASONS", "BadRecord", "BadRecordError", "MissingField", "Pair", "Record", "Skipped",
    "Sound", "TextFields", "describe_json_type", "keep_good", "make_bad_record", "make_sentence", "refuse_or_skip",
]  # fmt: skip

DEFAULT_FIELD = "text"
"""The field that holds the text if no other is named."""

MOST_REASONS = 5
"""The number of bad records whose reasons commands print."""

_MOST_NAMES = 20
_MOST_LEVELS = 100  # of lists and objects in a field that is kept; Python writes no more than some hundred


class Pair(NamedTuple):
    """A source text and its target: a translation, a summary or an answer."""

    source: str
    target: str


@dataclass(frozen=True, eq=False)
class Sound:
    """Mono samples in float32 with full scale at ±1. The rate is in samples per second."""

    samples: NDArray[np.float32]
    rate: int
    label: str | None = None


@dataclass(frozen=True)
class Record:
    """An item (a text, a `Pair` or a `Sound`) and its place in words, such as "line 12 of 'a.jsonl'".

    `kept` are the other fields of the same row that the caller asked for.
    """

    item: Any
    place: str
    kept: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class BadRecord:
    """A record that cannot be used: its place, and the reason as a sentence that names the place.

    `kept` are the fields that the caller asked for, as far as the record has them.
    """

    place: str
    reason: str
    kept: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class MissingField(BadRecord):
    """A record without the requested field. Perhaps every record lacks it, and another name was meant."""


class BadRecordError(InputError):
    """A record cannot be used, and none may be skipped."""


@dataclass
class Skipped:
    """The number of bad records that were skipped, and the first few of them."""

    count: int = 0
    first: list[BadRecord] = field(default_factory=list)

    def add(self, record: BadRecord) -> None:
        """Count one more bad record."""
        self.count += 1
        if len(self.first) < MOST_REASONS:
            self.first.append(record)


def keep_good(records: Iterable[Record | BadRecord], skipped: Skipped | None) -> Iterator[Record]:
    """Yield the good records. Bad ones are added to `skipped`; if it is None, the first one raises an error."""
    for record in records:
        if isinstance(record, Record):
            yield record
        else:
            refuse_or_skip(record, skipped)


def refuse_or_skip(record: BadRecord, skipped: Skipped | None) -> None:
    """Add a bad record to `skipped`; if it is None, raise a BadRecordError."""
    if skipped is None:
        raise BadRecordError(record.reason)
    skipped.add(record)


@dataclass(frozen=True)
class TextFields:
    """The fields that hold the texts: `source` and, for pairs, `target`. Dots lead into objects: `translation.en`.

    `keep` names further fields of a row, whose values records keep. With `chat`, a field may also hold the messages of
    a conversation, of which this text is taken.
    """

    source: str
    target: str | None = None
    allow_empty: bool = False
    keep: tuple[str, ...] = ()
    chat: Chat | None = None

    @property
    def names(self) -> list[str]:
        """The source field and, for pairs, the target field."""
        return [self.source] if self.target is None else [self.source, self.target]

    @property
    def read(self) -> list[str]:
        """All fields that are read."""
        return list(dict.fromkeys([*self.names, *self.keep]))

    def make_record(self, values: Mapping[str, Any], place: str) -> Record | BadRecord:
        """Return the text or the pair that is among `values`."""
        record = self._make_record(values, place)
        if isinstance(record, BadRecord) and self.keep:
            looked_up = {name: _look_up(values, name)[1] for name in self.keep}
            return replace(record, kept={name: value for name, value in looked_up.items() if not _is_deep(value)})
        return record

    def _make_record(self, values: Mapping[str, Any], place: str) -> Record | BadRecord:
        texts = []
        for name in self.names:
            found, text = _look_up(values, name)
            if not found:
                return MissingField(place, _describe_missing(name, values, place))
            if self.chat is not None and isinstance(text, list):
                try:
                    text = choose_text(read_messages(text), self.chat)
                except ConversationError as error:
                    return make_bad_record(
                        place, f"is not a conversation to learn from: {str(error).rstrip('.')}", name
                    )
            if problem := self._find_problem(text):
                return make_bad_record(place, problem, name)
            texts.append(text)
        kept = {}
        for name in self.keep:
            found, kept[name] = _look_up(values, name)
            if not found:
                return MissingField(place, _describe_missing(name, values, place))
            if _is_deep(kept[name]):
                return make_bad_record(place, f"has more than {_MOST_LEVELS} levels, and cannot be kept", name)
        return Record(texts[0] if self.target is None else Pair(*texts), place, kept)

    def make_plain_record(self, text: str, place: str) -> Record | BadRecord:
        """Return a record of a text that has no field."""
        problem = self._find_problem(text)
        return make_bad_record(place, problem) if problem else Record(text, place)

    def refuse_missing(self, values: Mapping[str, Any], where: str) -> None:
        """Raise an error if a field is not among `values`, the fields that all records of the input have."""
        for name in self.read:
            if not _look_up(values, name)[0]:
                raise InputError(_describe_missing(name, values, where))

    def refuse_doubled(self, columns: Sequence[str], where: str) -> None:
        """Raise an error if two of the columns of a table have the name of a field."""
        for name in self.read:
            if columns.count(name) > 1:
                raise InputError(
                    make_sentence(f"{where} has {columns.count(name)} columns {name!r}: rename all but one")
                )

    def _find_problem(self, text: Any) -> str | None:
        if not isinstance(text, str):
            return f"must be a string, got {describe_json_type(text)}"
        if not self.allow_empty and not text.strip():
            return "is empty except for white space" if text else "is empty"
        try:
            text.encode()
        except UnicodeEncodeError:  # JSON can express it, but tokenizers and stores cannot
            return "has half of a surrogate pair, which is not a character"
        return None


def make_bad_record(place: str, problem: str, name: str | None = None) -> BadRecord:
    """Return a bad record whose reason is a sentence about its place, or about the field `name` there."""
    return BadRecord(place, make_sentence(f"{f'field {name!r} in ' if name else ''}{place} {problem}"))


def make_sentence(words: str) -> str:
    """Return `words` with a capital letter and a full stop."""
    return f"{words[:1].upper()}{words[1:]}."


def describe_json_type(value: Any) -> str:
    """Return the name of the type of `value` in JSON, with its article."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def _look_up(values: Mapping[str, Any], name: str) -> tuple[bool, Any]:
    """Return whether the field exists, and its value. A key may contain dots, so the whole name is tried first."""
    if name in values:
        return True, values[name]
    first, dot, rest = name.partition(".")
    inner = values.get(first)
    return _look_up(inner, rest) if dot and isinstance(inner, Mapping) else (False, None)


def _is_deep(value: Any) -> bool:
    """Return whether lists and objects are in each other at more than `_MOST_LEVELS` levels."""
    level = [value]
    for _ in range(_MOST_LEVELS + 1):
        inner = [own.values() if isinstance(own, Mapping) else own for own in level if isinstance(own, Mapping | list)]
        if not inner:
            return False
        level = [value for values in inner for value in values]
    return True


def _describe_missing(name: str, values: Mapping[str, Any], where: str) -> str:
    names = list(_list_fields(values))
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    listed = (", ".join(map(repr, names[:_MOST_NAMES])) or "none") + more
    return make_sentence(f"{where} has no field {name!r}{suggest_name(name, names)}: there are {listed}")


def _list_fields(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from (f"{name}.{inner}" for inner in _list_fields(value))
        else:
            yield name
