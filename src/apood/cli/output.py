"""What commands print: rows, JSON, facts for people, warnings and errors."""

import contextlib
import csv
import errno
import inspect
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

from apood.support.checks import import_optional
from apood.support.errors import ApoodError, DataWarning, FitWarning, InputError
from apood.support.files import atomic_file, refuse_unwritable

__all__ = ["PlainGroup", "advise_on_interrupt", "check_rows_file", "print_facts", "print_json", "write_rows"]

Columns = Mapping[str, Sequence[Any]]

_FORMATS = (".jsonl", ".csv", ".parquet")

_BAD_INPUT, _INTERRUPTED = 2, 130
_START_AGAIN = "Interrupted: run the same command again to start over."


def print_json(content: Any) -> None:
    """Print indented JSON. NaN and infinities become null, because JSON has neither."""
    typer.echo(json.dumps(_replace_nonfinite(content), indent=2, allow_nan=False, ensure_ascii=False))


def _replace_nonfinite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _replace_nonfinite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_replace_nonfinite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print names and values in two columns. A value that is itself a mapping is shown as one line per entry."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, Text(_format_fact(value)))
    Console(highlight=False).print(table)


def _format_fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {_format_fact(part)}" for name, part in value.items()) or "–"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def check_rows_file(path: Path, *, force: bool) -> None:
    """Raise an error if `write_rows` cannot write `path`, or would replace a file without `force`."""
    if path.suffix.lower() not in _FORMATS:
        raise InputError(f"The ending of {path} is not a known format: use {', '.join(_FORMATS)}.")
    if path.is_dir():
        raise InputError(f"{path} is a folder: give the name of a file.")
    if path.exists() and not force:
        raise InputError(f"The file {path} exists already: choose another name, or replace it with --force.")
    if path.suffix.lower() == ".parquet":
        _import_pyarrow(path)
    refuse_unwritable(path)


def write_rows(columns: Columns, path: Path | None, *, as_json: bool) -> None:
    """Write rows, given as columns, in the format that the ending of `path` names.

    Without a path, rows are printed: as a table on a terminal, and as JSON lines in a pipe or with `as_json`.
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
            pyarrow = _import_pyarrow(path)
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
        file.write(json.dumps(_replace_nonfinite(dict(zip(columns, values, strict=True))), allow_nan=False) + "\n")


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


def _import_pyarrow(path: Path) -> Any:
    import_optional("pyarrow", "hf", f"Writing {path}")
    import pyarrow.parquet

    return pyarrow


class PlainGroup(TyperGroup):
    """A group of commands that end with one sentence and an exit code, never with a traceback.

    Bad input ends with `Error: …` and exit code 2, Ctrl-C and SIGTERM with `Interrupted: …` and 130. If the environment
    variable APOOD_DEBUG is set, errors are raised as they are, with their traceback.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command, with each paragraph of its help on one line, so that the help wraps only once."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.help:
            paragraphs = inspect.cleandoc(command.help).split("\n\n")
            command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        return command

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the program and exit. A wrong command line ends with one sentence."""
        options["standalone_mode"] = False
        try:
            raise SystemExit(super().main(*args, **options))
        except typer.Abort as error:
            _exit_with(_INTERRUPTED, _START_AGAIN, error)
        except Exception as error:
            if not hasattr(error, "format_message"):  # only typer's own errors have it; their base class is not public
                raise
            _exit_with(_BAD_INPUT, f"Error: {_describe_usage_error(error)}", error)

    def invoke(self, ctx: Any) -> Any:
        """Run one command. Wrong input ends with one sentence."""
        try:
            with _plain_warnings():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            _exit_with(_INTERRUPTED, f"Interrupted: {error}" if error.args else _START_AGAIN, error)
        except ApoodError as error:
            _exit_with(_BAD_INPUT, f"Error: {error}", error)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of a pipe, as in `apood … | head`, has stopped
                raise
            _exit_with(_BAD_INPUT, f"Error: {error}.", error)


def _exit_with(code: int, message: str, error: BaseException) -> NoReturn:
    if os.environ.get("APOOD_DEBUG") and code == _BAD_INPUT:
        raise error
    typer.echo(" ".join(message.split()), err=True)
    raise SystemExit(code) from error


def _describe_usage_error(error: Any) -> str:
    message = str(error.format_message()).strip().replace(": Value error, ", ": ")
    context = getattr(error, "ctx", None)
    if context is None or message.endswith("?"):
        return message
    return f"{message.rstrip('.')}; see `{context.command_path} --help`."


@contextlib.contextmanager
def advise_on_interrupt(advice: Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C inside the block, end with the sentence that `advice` returns: what was kept, and how to continue."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(advice()) from error


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show the warnings of apood as one line each, and all others as Python does."""
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
