"""The tables of options in docs/cli.md, made from the commands themselves.

`python tests/docs/cli_tables.py` writes them again after a change of a command.
"""

import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from typer.main import get_command

from apood.cli.app import app
from apood.experiments.paper.catalogue import CATALOGUE

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
HEADER = "| option | meaning | default |\n| --- | --- | --- |\n"
TABLE = re.compile(r"^\| option \|.*\n(?:^\|.*\n)*", re.MULTILINE)


def list_commands(group: Any, prefix: str = "apood") -> Iterator[tuple[str, Any]]:
    """Yield every command with its full name. The experiments of the paper, which are all alike, share one: NAME."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from list_commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {'NAME' if name in CATALOGUE else name}", command


COMMANDS: dict[str, Any] = dict(list_commands(get_command(app)))


def list_options(command: Any) -> list[str]:
    """Return the names of all options, such as `--out`, without `--help`."""
    names = [name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)]
    return [name for name in names if name.startswith("--") and name != "--help"]


def make_table(command: Any) -> str:
    """Return the Markdown table of the arguments and options of a command."""
    return HEADER + "".join(
        f"| {_name(parameter)} | {' '.join(parameter.help.split())} | {_default(parameter)} |\n".replace("|  |", "| |")
        for parameter in command.params
        if "--help" not in parameter.opts
    )


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar}{' …' if parameter.nargs == -1 else ''}`"
    return ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    value = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
    if value is None or value is False or value == () or callable(value):
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def find_section(page: str, name: str) -> str | None:
    """Return the section of a command, or None."""
    section = re.search(rf"^## {name}$.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return section and section[0]


def rewrite(page: str) -> str:
    """Return the page with the tables of all commands made anew."""
    for name, command in COMMANDS.items():
        if section := find_section(page, name):
            page = page.replace(section, TABLE.sub(lambda _, own=command: make_table(own), section, count=1))
    return page


if __name__ == "__main__":
    PAGE.write_text(rewrite(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
