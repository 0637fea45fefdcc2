"""Bodies of requests, read with limits: bytes, time, encoding, depth, number of objects and lists."""

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from apood.serving.http.errors import HttpError

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["MOST_DEPTH", "get_content_type", "parse_object", "read_body", "read_json", "work_on"]

T = TypeVar("T")

MOST_DEPTH = 64
"""The largest depth of nested objects and lists in a body."""

_SHORT = 1 << 14  # bytes that hold the event loop for a few milliseconds at most
_MOST_BRACKETS = 250_000  # that open an object or a list; millions of them would take seconds


def get_content_type(request: "Request") -> str:
    """Return the media type of a body. Raise HttpError if the body is compressed, or in another charset than UTF-8."""
    for name in ("content-type", "content-encoding"):
        if len(request.headers.getlist(name)) > 1:  # a program behind the service might read the other one
            raise HttpError(400, f"The request has the header {name} twice.")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(415, "The body is compressed, and only plain bodies are read: send it without encoding.")
    kind, *parameters = (part.strip().lower() for part in request.headers.get("content-type", "").split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip(' "') not in ("utf-8", "utf8"):
            raise HttpError(415, "The charset of the body must be utf-8.")
    return kind


async def read_json(request: "Request", most_bytes: int, end: float) -> tuple[bytes, dict[str, Any]]:
    """Return a JSON body and the object in it, as `read_body` and `parse_object` do."""
    if get_content_type(request) != "application/json":
        raise HttpError(415, "The content type must be application/json.")
    body = await read_body(request, most_bytes, end)
    return body, await work_on(body, lambda: parse_object(body))


async def work_on(body: bytes, work: Callable[[], T]) -> T:
    """Return the result of `work`, whose time grows with the body; for a long body, another thread does it."""
    return work() if len(body) <= _SHORT else await asyncio.to_thread(work)


async def read_body(request: "Request", most_bytes: int, end: float) -> bytes:
    """Return the body. Raise HttpError if it has more than `most_bytes`, also in chunks, or is not there at `end`.

    `end` is a time of the event loop.
    """
    too_large = HttpError(413, f"The body is larger than {most_bytes:,} bytes, the limit of this service.")
    announced = request.headers.get("content-length", "0")
    if not announced.isdecimal():
        raise HttpError(400, "The header content-length must be a number.")
    if int(announced[:20]) > most_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout_at(end):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most_bytes:
                    raise too_large
    except TimeoutError as error:
        raise HttpError(408, "The body did not arrive before the deadline.") from error
    return bytes(body)


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the object in a JSON body. Raise HttpError for anything else.

    Names that occur twice are refused, also if they differ in case: a program behind the service might read the other
    one.
    """
    if body.count(b"[") + body.count(b"{") > _MOST_BRACKETS:
        raise HttpError(400, f"The body has more than {_MOST_BRACKETS:,} brackets that open an object or a list.")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise HttpError(400, f"The body is not UTF-8: byte {error.start} cannot be read.") from error
    try:
        found = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_twice)
    except HttpError:
        raise
    except RecursionError as error:
        raise _too_deep() from error
    except json.JSONDecodeError as error:
        raise HttpError(400, f"The body is not JSON: {error.msg} at character {error.pos}.") from error
    except ValueError as error:  # an integer of more digits than Python reads
        raise HttpError(400, "The body has a number of thousands of digits.") from error
    if not isinstance(found, dict):
        raise HttpError(400, "The body must be a JSON object.")
    _check_depth(found)
    return found


def _refuse_constant(name: str) -> None:
    raise HttpError(400, f"The body is not JSON: {name} is not a JSON number.")


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name.casefold() for name, _ in pairs}) < len(pairs):
        raise HttpError(400, "The body has an object with the same name twice; case makes no difference.")
    return dict(pairs)


def _check_depth(content: Any) -> None:
    level = [content]
    for _ in range(MOST_DEPTH):
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)
                 if isinstance(inner, dict | list)]  # fmt: skip
        if not level:
            return
    raise _too_deep()


def _too_deep() -> HttpError:
    return HttpError(400, f"The body is nested too deeply: {MOST_DEPTH} levels are allowed.")
