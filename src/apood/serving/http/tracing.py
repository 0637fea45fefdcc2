"""The trace that a request belongs to, by the header traceparent of the W3C, for the log."""

import re
from collections.abc import Iterable
from contextvars import ContextVar

__all__ = ["describe_trace", "note_trace"]

_FORM = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_trace: ContextVar[str | None] = ContextVar("trace", default=None)


def note_trace(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Keep the trace of the request of this task. What has another form than the standard's could be anything."""
    given = [_FORM.fullmatch(value) for name, value in headers if name.lower() == b"traceparent"]
    found = given[0] if len(given) == 1 else None
    _trace.set(None if found is None else found[1].decode("ascii"))


def describe_trace() -> str:
    """Return the trace of this task's request, to put behind a message; empty if it has none."""
    return "" if (trace := _trace.get()) is None else f" (trace {trace})"
