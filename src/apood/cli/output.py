"""What commands print: rows, JSON, facts for people, warnings and errors."""

import contextlib
import csv
import errno
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from apood.support.errors import ApoodError, DataWarning, FitWarning, InputError
from apood.support.files import atomic_file, refuse_unwritable

__all__ = ["PlainGroup", "advise_on_interrupt", "check_rows_file", "print_facts", "print_json", "write_rows"]

Columns = Mapping[str, Sequence[Any]]

_FORMATS = (".jsonl", ".csv", ".parquet")

_BAD_INPUT, _INTERRUPTED = 2, 130
_START_ANEW = "Interrupted: run the same command again to start anew."


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


class PlainGroup(TyperGroup):
    """Commands that end with `Error: …` and exit code 2, or `Interrupted: …` and 130.

    With APOOD_DEBUG=1 in the environment an error is raised as it is, to see where it comes from.
    """

    def main(self, *args: Any, **options: Any) -> Any:
        """Runs the program and exits, with one sentence for what the command line got wrong."""
        options["standalone_mode"] = False
        try:
            raise SystemExit(super().main(*args, **options))
        except typer.Abort as error:
            _end(_INTERRUPTED, _START_ANEW, error)
        except Exception as error:
            if not hasattr(error, "format_message"):  # the mark of typer's own errors, whose base class is not public
                raise
            _end(_BAD_INPUT, f"Error: {_usage_sentence(error)}", error)

    def invoke(self, ctx: Any) -> Any:
        """Runs one command, with one sentence for what its input got wrong."""
        try:
            with _plain_warnings():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            _end(_INTERRUPTED, f"Interrupted: {error}" if error.args else _START_ANEW, error)
        except ApoodError as error:
            _end(_BAD_INPUT, f"Error: {error}", error)
        except OSError as error:
            if error.errno == errno.EPIPE:  # `apood … | head`: nobody reads on
                raise
            _end(_BAD_INPUT, f"Error: {error}.", error)


def _end(code: int, message: str, error: BaseException) -> NoReturn:
    if os.environ.get("APOOD_DEBUG") and code == _BAD_INPUT:
        raise error
    typer.echo(" ".join(message.split()), err=True)
    raise SystemExit(code) from error


def _usage_sentence(error: Any) -> str:
    message = str(error.format_message()).strip().replace(": Value error, ", ": ")
    context = getattr(error, "ctx", None)
    if context is None or message.endswith("?"):
        return message
    return f"{message.rstrip('.')}; see `{context.command_path} --help`."


@contextlib.contextmanager
def advise_on_interrupt(advice: Callable[[], str]) -> Iterator[None]:
    """Says on Ctrl-C what was kept of the work inside and how to go on."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(advice()) from error


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """The warnings of apood as one line each; those of libraries as Python shows them."""
    with warnings.catch_warnings():
        show_others = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, DataWarning | FitWarning):
                typer.echo(f"Warning: {message}", err=True)
            else:
                show_others(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        for category in (DataWarning, FitWarning):
            warnings.simplefilter("always", category)
        yield
