"""The life of requests: a service that lives with its server, clients that go away, errors that are answered."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from apood.serving.http.errors import HttpError, as_http_error, describe_error
from apood.serving.http.service import Service
from apood.support.errors import ApoodError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

__all__ = ["add_error_handlers", "keep_running", "run_unless_gone"]

T = TypeVar("T")


@asynccontextmanager
async def keep_running(service: Service) -> AsyncIterator[None]:
    """Start a service in the background, so that the process answers at once, and close it at the end."""
    starting = asyncio.create_task(service.start())
    try:
        yield
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await service.close()


async def run_unless_gone(request: "Request", work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; cancel it and raise ClientDisconnect if the client goes away meanwhile."""
    from starlette.requests import ClientDisconnect

    async def wait_until_gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(wait_until_gone())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


def add_error_handlers(app: "Starlette") -> None:
    """Answer expected errors with their status and one sentence."""
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response

    async def answer(_request: Request, error: Exception) -> Response:
        known = as_http_error(error)
        if known is None and isinstance(error, HTTPException):  # of the framework: an unknown path or method
            sentence = {404: "There is no such path.", 405: "The path does not allow this method."}.get(
                error.status_code, "The request cannot be read."
            )
            known = HttpError(error.status_code, sentence, headers=dict(error.headers or {}))
        if known is None:  # it is unexpected; the gate logs it
            known = HttpError(500, "The service met an unexpected error.")
        return JSONResponse(describe_error(known), known.status, known.headers)

    async def forget(_request: Request, _error: Exception) -> Response:
        return Response(status_code=499)  # nobody reads it

    for kind in (ApoodError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(ClientDisconnect, forget)
