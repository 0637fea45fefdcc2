"""Who may ask, and what leaves the service: access tokens, hosts, headers, and unexpected errors."""

import hashlib
import hmac
import ipaddress
import json
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import Any

from apood.serving.http.errors import CutAnswerError, HttpError, describe_error
from apood.serving.http.service import Service
from apood.serving.http.tracing import note_trace
from apood.support.errors import InputError

__all__ = ["PAGE_PATHS", "SAFE_HEADERS", "Asgi", "Gate", "check_exposure", "is_loopback", "read_tokens"]

AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
Asgi = Callable[[AsgiMessage, Receive, Send], Awaitable[None]]

PAGE_PATHS = ("/", "/page.js", "/page.css")
"""The paths of the page for people, which is the same for everybody."""

_OPEN = frozenset({*PAGE_PATHS, "/healthz", "/readyz"})  # they tell nothing about inputs
_UNCOUNTED = _OPEN | {"/metrics"}  # who runs the service looks at these when it is full
_MOST_REQUESTS = 1024  # at the same time
_SHORTEST = 16  # characters of an access token
SAFE_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Headers that keep browsers from doing more with an answer than showing it."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_tokens(text: str) -> tuple[str, ...]:
    """Return access tokens, one per line. Raise InputError if one is too short to be a secret."""
    tokens = tuple(line.strip() for line in text.splitlines() if line.strip())
    for number, token in enumerate(tokens, 1):
        if len(token) < _SHORTEST or not token.isascii() or " " in token:
            raise InputError(
                f"An access token must have at least {_SHORTEST} ASCII characters and no space: number {number} has "
                "not."
            )
    return tokens


def check_exposure(host: str, tokens: Collection[str]) -> None:
    """Raise InputError if other machines could ask without an access token."""
    if not tokens and not is_loopback(host):
        raise InputError(
            f"The address {host} can be reached from other machines, so access tokens are required: give a file with "
            "--tokens, one access token per line, or bind to 127.0.0.1."
        )


class Gate:
    """Wraps an application: it checks access tokens and hosts, counts answers, and answers unexpected errors.

    Args:
        app: the application.
        service: the service, for its metrics.
        tokens: the access tokens, one of which a request must have; empty if everyone on this machine may ask.
        local: whether the server is bound to loopback. Without access tokens, the name in the header Host must then be
            a local one, so that a web page cannot reach the service under a name of its own.
        token_headers: the headers that an access token may be in.
        added: headers that every answer gets, unless it has them.
    """

    def __init__(
        self,
        app: Asgi,
        service: Service,
        tokens: Collection[str],
        *,
        local: bool,
        token_headers: Collection[str] = ("authorization", "x-api-key"),
        added: Mapping[str, str] = SAFE_HEADERS,
    ) -> None:
        self._app, self._service = app, service
        self._only_local = local and not tokens
        self._busy = 0  # requests that are being answered
        self._tokens, self._token_headers = [_digest(token) for token in tokens], token_headers
        self._added = [(name.encode(), value.encode()) for name, value in added.items()]

    async def __call__(self, scope: AsgiMessage, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, counted = time.perf_counter(), 0, scope["path"] not in _UNCOUNTED
        self._busy += counted
        note_trace(scope["headers"])

        async def note(message: AsgiMessage) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in self._added if pair[0] not in present)]
            await send(message)

        try:
            self._check(scope)
            if counted and self._busy > _MOST_REQUESTS:
                raise HttpError(429, "The service is full: try again in 1 s.", headers={"retry-after": "1"})
            await self._app(scope, receive, note)
        except HttpError as error:
            await _answer(note, error)
        except CutAnswerError:
            pass  # the server closes the connection, because the answer is not complete
        except Exception as error:
            self._service.note_failure(error)
            if not status:
                await _answer(note, HttpError(500, "The service met an unexpected error."))
        finally:
            self._busy -= counted
            route = getattr(scope.get("route"), "path", "other")
            self._service.metrics.count_request(route, status or 499, time.perf_counter() - started)

    def _check(self, scope: AsgiMessage) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if self._only_local and not is_loopback(_drop_port(headers.get("host", "")).lower()):
            raise HttpError(
                403, "Without access tokens, the service answers only to localhost and addresses such as 127.0.0.1."
            )
        if not self._tokens or scope["path"] in _OPEN:
            return
        given = [_digest(_get_token(name, headers.get(name, ""))) for name in self._token_headers]
        # All are compared, in constant time, so that the time tells nothing about any of them.
        if not any([hmac.compare_digest(one, own) for one in given for own in self._tokens]):  # noqa: C419
            where = " or ".join(self._token_headers)
            raise HttpError(
                401, f"An access token is required, in the header {where}.", headers={"www-authenticate": "Bearer"}
            )


def _get_token(header: str, value: str) -> str:
    if header != "authorization":
        return value.strip()
    kind, _, token = value.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _drop_port(host: str) -> str:
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


async def _answer(send: Send, error: HttpError) -> None:
    body = json.dumps(describe_error(error)).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
