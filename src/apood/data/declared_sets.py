"""Checks of the TOML tables that declare the sets of an experiment; the paper's and the benchmark's share them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from apood.support.checks import suggest_name
from apood.support.errors import InputError

__all__ = ["ID_KEYS", "Common", "check_keys", "read_common"]

ID_KEYS = ("id", "id_train", "id_test")


class Common(NamedTuple):
    """What every table of sets declares.

    Attributes:
        field: the field with the text, for all sets that name none; None for that of a preset, or "text".
        prompt: what a model reads in mode output, with `{text}` in place of the text.
        ood: the OOD sets by name, as the table has them.
        given: the keys of the ID sets: `id` alone, or `id_train` and `id_test`.
    """

    field: str | None
    prompt: str | None
    ood: dict[str, Any]
    given: tuple[str, ...]


def check_keys(table: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
    """Raise InputError if a table has a key that is not allowed; `where` names the table."""
    for key in table:
        if key not in allowed:
            raise InputError(
                f"There is no key {key!r}{suggest_name(key, allowed)} in {where}; allowed are {', '.join(allowed)}."
            )


def read_common(table: Mapping[str, Any], where: str, ood_table: str) -> Common:
    """Return what every table of sets declares, after checking it.

    Args:
        table: the table.
        where: what follows the name of a key in an error, such as " in [corpora.news]"; empty for a whole file.
        ood_table: the name of the table of OOD sets.
    """
    field, prompt, ood = table.get("field"), table.get("prompt"), table.get("ood")
    for key, text in (("field", field), ("prompt", prompt)):
        if text is not None and not isinstance(text, str):
            raise InputError(f"{key}{where} must be a text, got {text!r}.")
    if prompt is not None and prompt.count("{text}") != 1:
        raise InputError(f"prompt{where} must contain {{text}} once, in place of the text, got {prompt!r}.")
    given = tuple(key for key in ID_KEYS if key in table)
    if given not in (("id",), ("id_train", "id_test")):
        found = " and ".join(given) or "none of them"
        raise InputError(f"The ID sets{where} are either id_train and id_test, or id alone, got {found}.")
    if not isinstance(ood, dict) or not ood:
        raise InputError(f"The table {ood_table} must name at least one OOD set and its input.")
    return Common(field, prompt, ood, given)
