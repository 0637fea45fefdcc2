"""The upstream server: requests to it and answers from it, unchanged except for hop-by-hop headers."""

from collections.abc import AsyncIterator, Callable, Iterable
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from apood.serving.http.errors import CutAnswerError, HttpError
from apood.support.errors import InputError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["Upstream", "check_upstream"]

Header = tuple[bytes, bytes]

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
_OWN = b"x-apood-"  # headers of the proxy itself, which neither side may forge
_CONNECT_SECONDS = 5.0
_IDLE_SECONDS = 2.0  # fewer than the 5 after which model servers close a connection: no request must meet that moment


def check_upstream(url: str) -> str:
    """Return the base of the paths of an upstream server. Raise InputError if `url` is not one."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.fragment
        usable = usable and parts.username is None and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise InputError(f"--upstream must be a URL such as http://127.0.0.1:8080, got {url!r}.")
    return url.rstrip("/").removesuffix("/v1")


class Upstream:
    """A server that speaks the OpenAI protocol.

    Args:
        url: its address, with or without /v1.
        seconds: how long to wait for the next bytes of an answer.

    Attributes:
        note_failure: called if there is no answer, or if one ends too early.
    """

    def __init__(self, url: str, seconds: float) -> None:
        import httpx2

        self.note_failure: Callable[[], None] = lambda: None
        self._base, self._seconds = check_upstream(url), seconds
        timeout = httpx2.Timeout(seconds, connect=_CONNECT_SECONDS)
        limits = httpx2.Limits(max_connections=None, keepalive_expiry=_IDLE_SECONDS)
        cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))  # one client's cookies must not reach another one
        # Variables of the environment must not send inputs to yet another server.
        self._client = httpx2.AsyncClient(
            timeout=timeout, limits=limits, cookies=cookies, trust_env=False, follow_redirects=False
        )
        for name in list(self._client.headers):
            del self._client.headers[name]

    async def send(self, request: "Request", body: bytes) -> Any:
        """Return the answer to a request, whose body is not read yet. Raise HttpError if there is none."""
        import httpx2

        path = request.scope["raw_path"].decode("ascii")
        query = request.scope["query_string"].decode("ascii", "replace")
        headers = [*_pass_on(request.headers.raw, dropped=(b"host", b"content-length", b"expect"))]
        url = f"{self._base}{path}{'?' if query else ''}{query}"
        built = self._client.build_request(request.method, url, headers=headers, content=body or None)
        try:
            return await self._client.send(built, stream=True)
        except httpx2.RequestError as error:
            self.note_failure()
            if isinstance(error, httpx2.TimeoutException) and not isinstance(error, httpx2.ConnectTimeout):
                raise HttpError(504, f"The upstream server was silent for {self._seconds:.3g} s.") from error
            raise HttpError(502, "The upstream server cannot be reached.") from error

    def pass_back(self, answer: Any, tags: dict[str, str]) -> "Response":
        """Return an answer for the client, byte by byte as it comes, with tags among its headers."""
        import httpx2
        from starlette.responses import StreamingResponse

        async def read() -> AsyncIterator[bytes]:
            try:
                async for chunk in answer.aiter_raw():
                    yield chunk
            except httpx2.RequestError as error:
                self.note_failure()
                raise CutAnswerError from error

        class Passed(StreamingResponse):
            async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
                try:
                    await super().__call__(scope, receive, send)
                finally:  # also if the client went away before the first byte
                    await answer.aclose()

        response = Passed(read(), answer.status_code)
        own = [(name.encode(), value.encode()) for name, value in tags.items()]
        response.raw_headers = [*_pass_on(answer.headers.raw, dropped=(b"date",)), *own]  # the proxy's server adds it
        return response

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def _pass_on(headers: Iterable[Header], dropped: Iterable[bytes] = ()) -> list[Header]:
    """Return the headers without those that concern one connection only, and without tags."""
    pairs = [(name.lower(), value) for name, value in headers]
    named = {part.strip().lower() for name, value in pairs if name == b"connection" for part in value.split(b",")}
    left = _HOP_BY_HOP | named | set(dropped)
    return [(name, value) for name, value in pairs if name not in left and not name.startswith(_OWN)]
