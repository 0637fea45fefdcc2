"""A plan from a TOML file, with one sentence for every mistake in it."""

import tomllib
from pathlib import Path
from typing import Any

from apood.evaluation.plan import Method, Plan, checked
from apood.support.checks import suggest_name
from apood.support.errors import InputError

__all__ = ["read_plan"]

_KINDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "a table",
    list: "a list",
}
_TOP = {"splits": int, "share": float, "seed": int, "data": dict, "methods": list}
_STORES = ("id", "id_train", "id_test", "id_validation", "aux")
_NUMBERS = ("splits", "share", "seed", "test_share")
_DATA = {**dict.fromkeys(_STORES, str), "test_share": float, "ood": dict}
_METHOD = {"method": str, "name": str, "aux": bool, "parameters": dict}


def read_plan(path: Path) -> Plan:
    """The checked plan that the file describes; its stores lie relative to the file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"The plan {path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:  # of TOML and of UTF-8
        raise InputError(f"The plan {path} is not TOML: {error}.") from error
    try:
        return checked(_plan(content, path.parent))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _plan(content: dict[str, Any], folder: Path) -> Plan:
    _check_table("the plan", content, _TOP)
    data = content.get("data")
    if data is None:
        raise InputError("The table [data] is missing, which names the stores.")
    _check_table("[data]", data, _DATA)
    ood = data.get("ood", {})
    _check_table("[data.ood]", ood, dict.fromkeys(ood, str))
    methods = content.get("methods", [])
    if "methods" in content and not methods:
        raise InputError("methods is empty: name some as [[methods]], or leave it out for all of them.")
    numbers = {key: table[key] for table in (content, data) for key in _NUMBERS if key in table}
    return Plan(
        ood={name: folder / store for name, store in ood.items()},
        methods=tuple(_method(number, table) for number, table in enumerate(methods, start=1)),
        **{key: folder / data[key] for key in _STORES if key in data},
        **numbers,
    )


def _method(number: int, table: Any) -> Method:
    where = f"method {number}"
    if not isinstance(table, dict):
        raise InputError(f"methods must be a list of tables, got {table!r}.")
    _check_table(where, table, _METHOD)
    if "method" not in table:
        raise InputError(f"The key method is missing in {where}, which names one of those that `apood methods` lists.")
    return Method(**table)


def _check_table(where: str, table: dict[str, Any], allowed: dict[str, type]) -> None:
    for key, value in table.items():
        if key not in allowed:
            raise InputError(
                f"There is no key {key!r}{suggest_name(key, allowed)} in {where}; allowed are {', '.join(allowed)}."
            )
        kind = allowed[key]
        kinds = (int, float) if kind is float else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
            raise InputError(f"{key} in {where} must be {_KINDS[kind]}, got {value!r}.")
