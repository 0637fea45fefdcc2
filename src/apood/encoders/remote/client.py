"""Requests to a model server: JSON in both directions, repeated while the server is busy."""

import os
import time
from typing import Any
from urllib.parse import urlsplit

from apood.support.checks import import_optional, shorten
from apood.support.errors import InputError, ServerError

__all__ = ["KEY", "Client", "RefusedError", "is_address"]

KEY = "APOOD_SERVER_KEY"
"""The environment variable with the key of the server, which is sent as a bearer token."""

_TRIES = 4
_FIRST_WAIT = 0.5  # seconds; doubled after each try
_LONGEST_WAIT = 10.0
_BUSY = (429, 502, 503, 504)


class RefusedError(ServerError):
    """A request that the server refuses; the attribute `reason` is what it says."""

    def __init__(self, address: str, path: str, status: int, reason: str) -> None:
        super().__init__(f"The server {address} answers {path} with the status {status}: {reason}.")
        self.status, self.reason = status, reason


def is_address(model: object) -> bool:
    """Return whether a model is named by the address of a server."""
    return isinstance(model, str) and model.lower().startswith(("http://", "https://"))


class Client:
    """A client of one server.

    A request is tried four times, with growing pauses, if the server cannot be reached or is busy. Redirects are not
    followed, and variables of the environment that name a proxy have no effect, so inputs reach no other server.

    Args:
        address: the address, such as http://127.0.0.1:8080.
        timeout: how many seconds to wait for an answer.
    """

    def __init__(self, address: str, timeout: float) -> None:
        httpx2 = import_optional("httpx2", "serve", "An encoder behind a server")
        self.address = _check_address(address)
        key = os.environ.get(KEY)
        self._errors = httpx2.RequestError
        self._client = httpx2.Client(
            timeout=httpx2.Timeout(timeout, connect=5.0),
            headers={} if not key else {"authorization": f"Bearer {key}"},
            trust_env=False,
            follow_redirects=False,
        )

    def get(self, path: str) -> Any:
        """Return the JSON at a path. Raise RefusedError if the server refuses, ServerError if it does not answer."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: Any) -> Any:
        """Return the JSON that answers a body, as `get` does."""
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: Any) -> Any:
        wait = _FIRST_WAIT
        for trial in range(_TRIES):
            last = trial == _TRIES - 1
            try:
                answer = self._client.request(method, f"{self.address}{path}", json=body)
            except self._errors as error:
                if last:
                    raise ServerError(
                        f"The server {self.address} did not answer {path} ({type(error).__name__}, {_TRIES} tries): "
                        "start it, or check the address."
                    ) from error
            else:
                if last or answer.status_code not in _BUSY:
                    return self._read(answer, path)
                wait = max(wait, _read_wait(answer.headers.get("retry-after")))
            time.sleep(min(wait, _LONGEST_WAIT))
            wait *= 2
        raise AssertionError("the last try returns or raises")

    def _read(self, answer: Any, path: str) -> Any:
        try:
            content = answer.json()
        except ValueError:
            content = None
        if answer.status_code == 200 and content is not None:
            return content
        if answer.status_code == 401:
            raise RefusedError(self.address, path, 401, f"a key is missing or wrong, put it into {KEY}")
        raise RefusedError(self.address, path, answer.status_code, _find_reason(content))


def _check_address(address: str) -> str:
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        usable = usable and parts.username is None and not parts.query and not parts.fragment
    except ValueError:
        usable = False
    if not usable:
        raise InputError(f"A server has an address such as http://127.0.0.1:8080, without a key, got {address!r}.")
    return address.rstrip("/").removesuffix("/v1")


def _read_wait(given: str | None) -> float:
    return float(given) if given is not None and given.isdigit() else 0.0


def _find_reason(content: Any) -> str:
    """Return the message of an error, which servers put at different places."""
    found = content.get("error", content) if isinstance(content, dict) else content
    if isinstance(found, dict):
        found = found.get("message", found)
    return "it gives no reason" if found is None else shorten(str(found).strip().rstrip("."))
