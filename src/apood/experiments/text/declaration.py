"""The corpora of the benchmark, as a TOML file declares them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from apood.data.declared_sets import ID_KEYS, check_keys, read_common
from apood.data.inputs import resolve_input
from apood.support.checks import check_choice, check_integer
from apood.support.errors import InputError
from apood.support.files import read_toml

__all__ = ["Corpus", "Declaration", "Input", "Kind", "Limits", "Status", "read_declaration"]

Status = Literal["development", "untouched"]
Kind = Literal["near", "far"]

_TOP_KEYS = ("salt", "limits", "corpora")
_CORPUS_KEYS = ("status", *ID_KEYS, "aux", "ood", "field", "max_tokens", "max_new_tokens", "prompt")
_OOD_KEYS = ("input", "kind", "field")


@dataclass(frozen=True)
class Input:
    """Where a set is read from.

    Attributes:
        names: files, patterns or hub names, as `apood embed` takes them.
        field: the field with the text; None for the preset's field, or "text".
    """

    names: tuple[str, ...]
    field: str | None = None


@dataclass(frozen=True)
class Limits:
    """The largest number of texts of each set.

    Attributes:
        train: of the ID texts to fit on.
        validation: of the ID texts that set the threshold.
        evaluated: of ID test texts, and of each OOD set.
        spliced: of each spliced set.
        aux: of the AUX texts to learn from.
    """

    train: int = 4000
    validation: int = 500
    evaluated: int = 1000
    spliced: int = 500
    aux: int = 1000


@dataclass(frozen=True)
class Corpus:
    """ID, AUX and OOD sets that belong together.

    Attributes:
        name: its name, which is part of file names.
        status: "development" if settings of apood were chosen on it, else "untouched".
        id: the ID set, or its two parts: the keys are `id`, or `id_train` and `id_test`.
        ood: the OOD sets by name.
        kinds: whether an OOD set is near or far.
        aux: auxiliary outliers.
        max_tokens: the tokens of a text that a model reads.
        max_new_tokens: the longest output, in mode output.
        prompt: what a model reads in mode output, with `{text}` in place of the text; None for the text alone.
    """

    name: str
    status: Status
    id: Mapping[str, Input]
    ood: Mapping[str, Input]
    kinds: Mapping[str, Kind]
    aux: Input | None = None
    max_tokens: int = 512
    max_new_tokens: int = 64
    prompt: str | None = None


@dataclass(frozen=True)
class Declaration:
    """All corpora of a file.

    Attributes:
        corpora: the corpora by name.
        salt: a text that the split of all texts depends on.
        limits: the sizes.
    """

    corpora: Mapping[str, Corpus]
    salt: str = "apood"
    limits: Limits = field(default_factory=Limits)


def read_declaration(path: Path, data: Path | None = None) -> Declaration:
    """Return the declaration in a TOML file; files are relative to `data`, by default the folder of the TOML file."""
    try:
        content = read_toml(path)
    except OSError as error:
        raise InputError(f"The declaration {path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:  # from the TOML parser or the UTF-8 decoder
        raise InputError(f"The declaration {path} is not TOML: {error}.") from error
    folder = path.parent if data is None else data
    if not folder.is_dir():
        raise InputError(f"There is no folder {str(folder)!r} with the files of {path}.")
    try:
        return _parse(content, folder)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _parse(content: dict[str, Any], folder: Path) -> Declaration:
    check_keys(content, _TOP_KEYS, "a declaration")
    salt, limits, corpora = content.get("salt", Declaration.salt), content.get("limits", {}), content.get("corpora")
    if not isinstance(salt, str):
        raise InputError(f"salt must be a text, got {salt!r}.")
    if not isinstance(limits, dict):
        raise InputError(f"limits must be a table, got {limits!r}.")
    check_keys(limits, [one.name for one in fields(Limits)], "[limits]")
    for key, value in limits.items():
        check_integer(f"{key} in [limits]", value, 1)
    if not isinstance(corpora, dict) or not corpora:
        raise InputError("A declaration must have at least one corpus, as a table [corpora.NAME].")
    return Declaration(
        {name: _parse_corpus(name, table, folder) for name, table in corpora.items()}, salt, Limits(**limits)
    )


def _parse_corpus(name: str, table: Any, folder: Path) -> Corpus:
    where = f"[corpora.{name}]"
    if not name.replace("_", "").replace("-", "").isalnum():
        raise InputError(f"The name of a corpus is part of file names: letters, digits, - and _ only, got {name!r}.")
    if not isinstance(table, dict):
        raise InputError(f"{where} must be a table, got {table!r}.")
    check_keys(table, _CORPUS_KEYS, where)
    check_choice(f"status in {where}", table.get("status"), get_args(Status))  # type: ignore[arg-type]
    common, prompt, ood, given = read_common(table, f" in {where}", f"[corpora.{name}.ood]")
    numbers = {key: table[key] for key in ("max_tokens", "max_new_tokens") if key in table}
    for key, value in numbers.items():
        check_integer(f"{key} in {where}", value, 1)
    sets, kinds = {}, {}
    for own, value in ood.items():
        place = f"[corpora.{name}.ood] {own}"
        if not isinstance(value, dict):
            raise InputError(f"{place} must be a table with input and kind, got {value!r}.")
        check_keys(value, _OOD_KEYS, place)
        check_choice(f"kind of {place}", value.get("kind"), get_args(Kind))  # type: ignore[arg-type]
        sets[own] = _parse_input(place, value.get("input"), folder, value.get("field", common))
        kinds[own] = value["kind"]
    return Corpus(
        name,
        table["status"],
        {key: _parse_input(f"{key} in {where}", table[key], folder, common) for key in given},
        sets,
        kinds,
        _parse_input(f"aux in {where}", table["aux"], folder, common) if "aux" in table else None,
        prompt=prompt,
        **numbers,
    )


def _parse_input(where: str, value: Any, folder: Path, own_field: Any) -> Input:
    names = [value] if isinstance(value, str) else value
    if not (isinstance(names, list) and names and all(isinstance(name, str) and name for name in names)):
        raise InputError(f"{where} must be a file, a hub name, or a list of them, got {value!r}.")
    if own_field is not None and not isinstance(own_field, str):
        raise InputError(f"The field of {where} must be a text, got {own_field!r}.")
    return Input(tuple(resolve_input(name, folder) for name in names), own_field)
