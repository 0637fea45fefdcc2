"""The errors of the HTTP service: a status code, a short code for programs, and one sentence."""

from collections.abc import Mapping
from typing import Any

from apood.data.conversations import ConversationError, UnjudgedError
from apood.serving.http.batcher import FullError, LateError
from apood.support.errors import ApoodError, InputError, ServerError

__all__ = ["CODES", "CutAnswerError", "HttpError", "as_http_error", "describe_error"]

CODES = {
    400: "bad_request",
    401: "no_token",
    403: "forbidden",
    404: "not_found",
    405: "not_allowed",
    408: "slow_body",
    413: "too_large",
    415: "unknown_type",
    422: "unusable",
    429: "full",
    500: "internal",
    502: "upstream_failed",
    503: "not_ready",
    504: "late",
}
"""The code of each status."""


class HttpError(ApoodError):
    """A request that is answered with an error.

    Args:
        status: the status code.
        message: one sentence, which never quotes the input.
        headers: headers of the answer.
        code: the code of the error; by default that of the status.
    """

    def __init__(
        self, status: int, message: str, *, headers: Mapping[str, str] | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})
        self.code = CODES.get(status, "error") if code is None else code


class CutAnswerError(Exception):
    """An answer of another server that ended too early. The connection to the client is cut, so that it notices."""


def as_http_error(error: Exception) -> HttpError | None:
    """Return the answer to an expected error; None for any other."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, FullError):
        return HttpError(429, str(error), headers={"retry-after": str(error.retry_after)})
    if isinstance(error, LateError):
        return HttpError(504, str(error))
    if isinstance(error, ConversationError):
        return HttpError(400, str(error), code="unjudged" if isinstance(error, UnjudgedError) else None)
    if isinstance(error, InputError):
        return HttpError(422, str(error))
    if isinstance(error, ServerError):  # its message names an address, and may quote the input
        return HttpError(503, "The server that makes the tokens gave none.", code="no_tokens")
    return None


def describe_error(error: HttpError) -> dict[str, Any]:
    """Return the body of an answer, in the form of OpenAI's errors, which clients know."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return {"error": {"message": error.message, "type": kind, "param": None, "code": error.code}}
