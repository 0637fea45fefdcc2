"""How a command ends that cannot go on: one sentence and an exit code, never a traceback."""

import contextlib
import errno
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from apood.support.errors import ApoodError, DataWarning, FitWarning

__all__ = ["PlainGroup", "interrupted_with"]

_BAD_INPUT, _INTERRUPTED = 2, 130
_START_ANEW = "Interrupted: run the same command again to start anew."


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
def interrupted_with(advice: Callable[[], str]) -> Iterator[None]:
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
