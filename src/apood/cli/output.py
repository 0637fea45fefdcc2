"""What commands give out: rows to files and pipes, JSON, and facts for people."""

import csv
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from apood.support.errors import InputError
from apood.support.files import atomic_file, refuse_unwritable

__all__ = ["check_rows_file", "print_facts", "print_json", "write_rows"]

Columns = Mapping[str, Sequence[Any]]

_FORMATS = (".jsonl", ".csv", ".parquet")


def print_json(content: Any) -> None:
    """Readable JSON on standard output; what is not finite becomes null, since JSON has no infinities."""
    typer.echo(json.dumps(_finite(content), indent=2, allow_nan=False, ensure_ascii=False))


def _finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def print_facts(facts: Mapping[str, Any]) -> None:
    """Names and values in two columns, for people; facts of facts stand below one another."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, Text(_shown(value)))
    Console(highlight=False).print(table)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {_shown(part)}" for name, part in value.items()) or "–"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def check_rows_file(path: Path, *, force: bool) -> None:
    """Refuses a file that `write_rows` could not write or, without `force`, would replace, before any work."""
    if path.suffix.lower() not in _FORMATS:
        raise InputError(f"The ending of {path} says no known format: allowed are {', '.join(_FORMATS)}.")
    if path.is_dir():
        raise InputError(f"{path} is a folder, but rows are written to a file.")
    if path.exists() and not force:
        raise InputError(f"There is already a file {path}: choose another name, or replace it with --force.")
    if path.suffix.lower() == ".parquet":
        _pyarrow(path)
    refuse_unwritable(path)


def write_rows(columns: Columns, path: Path | None, *, as_json: bool) -> None:
    """Writes the rows that `columns` make up, in the format that the ending of `path` says.

    Without a path they go to standard output: as a table on a terminal, as JSON lines elsewhere and when
    `as_json` asks for it.
    """
    if path is None:
        if as_json or not sys.stdout.isatty():
            _write_json_lines(columns, sys.stdout)
            sys.stdout.flush()
        else:
            _print_table(columns)
        return
    with atomic_file(path) as temporary:
        if path.suffix.lower() == ".parquet":
            pyarrow = _pyarrow(path)
            pyarrow.parquet.write_table(pyarrow.table(dict(columns)), temporary)
            return
        with temporary.open("w", encoding="utf-8", newline="") as file:
            if path.suffix.lower() == ".csv":
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(columns)
                writer.writerows(zip(*columns.values(), strict=True))
            else:
                _write_json_lines(columns, file)


def _write_json_lines(columns: Columns, file: Any) -> None:
    for values in zip(*columns.values(), strict=True):
        file.write(json.dumps(_finite(dict(zip(columns, values, strict=True))), allow_nan=False) + "\n")


def _print_table(columns: Columns) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name, values in columns.items():
        table.add_column(name, justify="left" if values and isinstance(values[0], str) else "right")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*(f"{value:.6g}" if isinstance(value, float) else str(value) for value in row))
    Console().print(table)


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(f"Writing {path} needs the package pyarrow: pip install 'apood[hf]'.") from error
    return pyarrow
