"""Which fields of a record hold its texts, and what makes a text usable."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from apood.data.record import BadRecord, Pair, Record
from apood.support.checks import suggest_name
from apood.support.errors import InputError

__all__ = ["DEFAULT_FIELD", "LacksField", "TextFields", "bad", "json_kind", "sentence"]

DEFAULT_FIELD = "text"
"""Where a text is looked for unless somebody says otherwise."""

_MOST_NAMES = 20


@dataclass(frozen=True)
class LacksField(BadRecord):
    """A record without the field that was asked for: perhaps all are, and another name is meant."""


@dataclass(frozen=True)
class TextFields:
    """Where the text of a record is: `source`, and for pairs `target`. Dots lead into objects: `translation.en`."""

    source: str
    target: str | None = None
    allow_empty: bool = False

    def record(self, values: Mapping[str, Any], place: str) -> Record | BadRecord:
        """The text or the pair among `values`."""
        texts: list[tuple[str | None, Any]] = []
        for field in self.names():
            found, value = _look_up(values, field)
            if not found:
                return LacksField(place, _lacks(field, values, place))
            texts.append((field, value))
        return self._checked(texts, place)

    def plain(self, text: str, place: str) -> Record | BadRecord:
        """A text that has no field."""
        return self._checked([(None, text)], place)

    def names(self) -> list[str]:
        """The source, and the target where there is one."""
        return [self.source] if self.target is None else [self.source, self.target]

    def refuse_absent(self, values: Mapping[str, Any], where: str) -> None:
        """For data whose records all have the same fields: refuses it as a whole where one is not among `values`."""
        for field in self.names():
            if not _look_up(values, field)[0]:
                raise InputError(_lacks(field, values, where))

    def _checked(self, texts: list[tuple[str | None, Any]], place: str) -> Record | BadRecord:
        for field, text in texts:
            if fault := self._fault(text):
                return BadRecord(
                    place, sentence(f"field {field!r} in {place} {fault}" if field else f"{place} {fault}")
                )
        if self.target is None:
            return Record(texts[0][1], place)
        return Record(Pair(texts[0][1], texts[1][1]), place)

    def _fault(self, text: Any) -> str | None:
        if not isinstance(text, str):
            return f"must be a string, got {json_kind(text)}"
        if not self.allow_empty and not text.strip():
            return "is empty, but for white space" if text else "is empty"
        try:
            text.encode()
        except UnicodeEncodeError:  # JSON can spell it, but no tokenizer and no store takes it
            return "has half of a surrogate pair, which is no character"
        return None


def bad(place: str, what: str) -> BadRecord:
    """A record whose reason is a sentence about its place."""
    return BadRecord(place, sentence(f"{place} {what}"))


def sentence(words: str) -> str:
    """With a capital letter in front and a full stop behind."""
    return f"{words[:1].upper()}{words[1:]}."


def json_kind(value: Any) -> str:
    """What a value is called in JSON."""
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def _look_up(values: Mapping[str, Any], field: str) -> tuple[bool, Any]:
    """A key may have dots of its own, so the whole name comes first."""
    if field in values:
        return True, values[field]
    first, dot, rest = field.partition(".")
    inner = values.get(first)
    return _look_up(inner, rest) if dot and isinstance(inner, Mapping) else (False, None)


def _lacks(field: str, values: Mapping[str, Any], where: str) -> str:
    names = list(_names(values.items()))
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    listed = (", ".join(map(repr, names[:_MOST_NAMES])) or "none") + more
    return sentence(f"{where} has no field {field!r}{suggest_name(field, names)}: there are {listed}")


def _names(items: Iterable[tuple[str, Any]]) -> Iterator[str]:
    for name, value in items:
        if isinstance(value, Mapping) and value:
            yield from (f"{name}.{inner}" for inner in _names(value.items()))
        else:
            yield name
