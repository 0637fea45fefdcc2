"""Bodies of requests, read with limits: bytes, time, encoding, depth."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

from apood.serving.http.errors import HttpError

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["MOST_DEPTH", "get_content_type", "parse_object", "read_body"]

MOST_DEPTH = 64
"""The largest depth of nested objects and lists in a body."""


def get_content_type(request: "Request") -> str:
    """Return the media type of a body without its parameters; raise HttpError if the body is compressed."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(415, "The body is compressed, and only plain bodies are read: send it without encoding.")
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(request: "Request", most_bytes: int, seconds: float) -> bytes:
    """Return the body. Raise HttpError if it is larger than `most_bytes`, also in chunks, or slower than `seconds`."""
    too_large = HttpError(413, f"The body is larger than {most_bytes:,} bytes, the limit of this service.")
    announced = request.headers.get("content-length", "0")
    if not announced.isdecimal() or int(announced[:20]) > most_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most_bytes:
                    raise too_large
    except TimeoutError as error:
        raise HttpError(408, f"The body did not arrive within {seconds:.3g} s.") from error
    return bytes(body)


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the object in a JSON body. Raise HttpError for anything else.

    Names that occur twice are refused: a program behind the service might read the other one.
    """
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
    raise HttpError(400, f"The body is not JSON: {name} is no number of JSON.")


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise HttpError(400, "The body has an object with the same name twice.")
    return found


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
