"""What commands print: rows, JSON, facts for people, warnings and errors."""

import contextlib
import csv
import errno
import inspect
import json
import os
import platform
import re
import shlex
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from apood.support.checks import import_optional
from apood.support.cloud import Place, write_file
from apood.support.errors import ApoodError, DataWarning, FitWarning, InputError
from apood.support.files import refuse_unwritable, replace_half_pairs, replace_nonfinite
from apood.support.version import __version__

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

__all__ = [
    "PlainGroup",
    "advise_on_interrupt",
    "check_file",
    "check_rows_file",
    "echo",
    "format_json",
    "print_facts",
    "print_json",
    "print_table",
    "write_rows",
]

Row = Mapping[str, Any]

_FORMATS = (".jsonl", ".csv", ".parquet")
_HALF_PAIRS = "backslashreplace"  # what becomes of half a surrogate pair, which a kept field may have

_BAD_INPUT, _UNEXPECTED, _INTERRUPTED = 2, 70, 130
_START_AGAIN = "Interrupted: run the same command again to start over."
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_MEMORY_SIGNS = ("allocate", "Storage size calculation overflowed")  # in torch's RuntimeErrors


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text, with control characters escaped: texts from files could otherwise command the terminal."""
    typer.echo(_escape(text), err=err, nl=nl)


def _escape(text: str) -> str:
    r"""Return a text in which control characters are written like \u001b, as in JSON."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class _Escaped:
    """A table or text for rich whose own control characters are escaped, unlike those that rich adds for its style."""

    def __init__(self, content: "RenderableType") -> None:
        self._content = content

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.segment import Segment

        for segment in console.render(self._content, options):
            yield segment if segment.control else Segment(_escape(segment.text), segment.style)


def print_table(table: "RenderableType", *, highlight: bool = False) -> None:
    """Print a table of rich, with control characters escaped."""
    from rich.console import Console

    Console(highlight=highlight).print(_Escaped(table))


def print_json(content: Any) -> None:
    """Print indented JSON. NaN and infinities become null, because JSON has neither."""
    echo(json.dumps(replace_nonfinite(content), indent=2, allow_nan=False, ensure_ascii=False))


def format_json(content: Any, indent: int | None = None) -> str:
    """Return JSON of ASCII characters. NaN and infinities become null, because JSON has neither."""
    return json.dumps(replace_nonfinite(content), indent=indent, allow_nan=False)


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print names and values in two columns. A value that is itself a mapping is shown as one line per entry."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, Text(_format_fact(value)))
    print_table(table)


def _format_fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {_format_fact(part)}" for name, part in value.items()) or "–"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def check_rows_file(path: Place, *, force: bool) -> None:
    """Raise an error if `write_rows` cannot write `path`, or would replace a file without `force`."""
    if path.suffix.lower() not in _FORMATS:
        raise InputError(f"The ending of {path} is not a known format: use {', '.join(_FORMATS)}.")
    if path.suffix.lower() == ".parquet":
        _import_pyarrow(path)
    check_file(path, force=force)


def check_file(path: Place, *, force: bool) -> None:
    """Raise an error if nothing can be written to `path`, or if it is there already and `force` is not given."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: give the name of a file.")
    if path.exists() and not force:
        raise InputError(f"The file {path} exists already: choose another name, or replace it with --force.")
    if isinstance(path, Path):
        refuse_unwritable(path)


def write_rows(rows: Iterable[Row], path: Place | None, *, as_json: bool) -> None:
    """Write rows, which have the same keys, in the format that the ending of `path` names.

    Without a path, rows are printed: as a table on a terminal, and as JSON lines in a pipe or with `as_json`. Each of
    these lines is written as soon as its row is there.
    """
    if path is None:
        if as_json or not sys.stdout.isatty():
            _write_json_lines(rows, sys.stdout)
        else:
            _print_table(list(rows))
        return
    with write_file(path, keep=True) as temporary:
        if path.suffix.lower() == ".parquet":
            _write_parquet(rows, temporary, path)
            return
        with temporary.open("w", encoding="utf-8", errors=_HALF_PAIRS, newline="") as file:
            if path.suffix.lower() == ".csv":
                writer = csv.writer(file, lineterminator="\n")
                for number, row in enumerate(rows):
                    if number == 0:
                        writer.writerow(row)
                    writer.writerow(row.values())
            else:
                _write_json_lines(rows, file)


def _write_parquet(rows: Iterable[Row], file: Path, path: Place) -> None:
    pyarrow = _import_pyarrow(path)
    content = [{name: replace_half_pairs(value) for name, value in row.items()} for row in rows]
    try:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(content), file)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError, OverflowError) as error:
        raise InputError(
            f"{path} cannot hold these rows. In a Parquet file, the values of a column must be of one kind, integers "
            f"must have at most 64 bits, and objects must not be empty: {str(error).rstrip('.')}. Write .jsonl or "
            ".csv, or keep other fields."
        ) from error


def _write_json_lines(rows: Iterable[Row], file: Any) -> None:
    for row in rows:
        file.write(format_json(row) + "\n")
        if file is sys.stdout:
            file.flush()


def _print_table(rows: Sequence[Row]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in rows[0] if rows else ():
        are_texts = any(isinstance(row[name], str) for row in rows)
        table.add_column(name, justify="left" if are_texts else "right")
    for row in rows:
        cells = (_format_fact(value) if not isinstance(value, int) else value for value in row.values())
        table.add_row(*(Text(cell) if isinstance(cell, str) else str(cell) for cell in cells))
    print_table(table, highlight=True)


def _import_pyarrow(path: Place) -> Any:
    import_optional("pyarrow", "hf", f"Writing {path}")
    import pyarrow.parquet

    return pyarrow


class PlainGroup(TyperGroup):
    """A group of commands that end with one sentence and an exit code, never with a traceback.

    Bad input ends with `Error: …` and exit code 2, Ctrl-C and SIGTERM with `Interrupted: …` and 130, and an unexpected
    error with 70 and a report in the temporary folder. If the environment variable APOOD_DEBUG is set, errors
    are raised as they are, with their traceback.
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
            if hasattr(error, "format_message"):  # only typer's own errors have it; their base class is not public
                _exit_with(_BAD_INPUT, f"Error: {_describe_usage_error(error)}", error)
            if os.environ.get("APOOD_DEBUG"):
                raise
            if _lacks_memory(error):
                _exit_with(
                    _BAD_INPUT, "Error: This needs more memory than there is: use less data or smaller settings.", error
                )
            _exit_with(_UNEXPECTED, _describe_unexpected(error, args[0] if args else options.get("args")), error)

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
            where = f": {error.filename}" if error.filename else ""
            _exit_with(_BAD_INPUT, f"Error: {error.strerror or error}{where}.", error)


def _exit_with(code: int, message: str, error: BaseException) -> NoReturn:
    if os.environ.get("APOOD_DEBUG") and code != _INTERRUPTED:
        raise error
    echo(" ".join(message.split()), err=True)
    raise SystemExit(code) from error


def _lacks_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # the latter is torch's
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _MEMORY_SIGNS)


def _describe_unexpected(error: Exception, arguments: Sequence[str] | None) -> str:
    """Write a report, and return a sentence about the error that says where the report is."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    versions = {"apood": __version__, "python": platform.python_version(), "system": platform.platform()}
    versions |= {name: str(sys.modules[name].__version__) for name in ("torch", "transformers") if name in sys.modules}
    report = [
        f"command: apood {shlex.join(words)}",
        *(f"{name}: {version}" for name, version in versions.items()),
        "The messages of the errors are left out, because they may quote inputs.",
        "",
    ]
    cause: BaseException | None = error
    while cause is not None:
        report += [*traceback.format_tb(cause.__traceback__), f"{type(cause).__name__}\n"]
        cause = cause.__cause__ or cause.__context__
    sentence = f"An unexpected error occurred: {type(error).__name__}: {str(error).rstrip('.')}."
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="backslashreplace", prefix="apood-error-", suffix=".txt", delete=False
        ) as file:
            file.write("\n".join(report))
    except OSError as failure:
        return f"{sentence} A report could not be written ({failure.strerror or failure})."
    return f"{sentence} The report is at {file.name}."


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
                echo(f"Warning: {message}", err=True)
            else:
                show_others(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        for category in (DataWarning, FitWarning):
            warnings.simplefilter("always", category)
        yield
