"""The application of the proxy: it judges inputs, refuses or tags them, and passes the rest on."""

import json
import re
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from apood.data.conversations import (
    Chat,
    OtherParts,
    UnjudgedError,
    choose_text,
    get_field,
    read_messages,
    read_responses_input,
)
from apood.pipeline.judging import Judgement
from apood.serving.http.access import Asgi, Gate
from apood.serving.http.bodies import read_json, work_on
from apood.serving.http.errors import HttpError, describe_error
from apood.serving.http.requests import add_error_handlers, keep_running, run_unless_gone
from apood.serving.http.service import Outcome, Service
from apood.serving.http.status import make_status_router
from apood.serving.proxy.refusals import ENDPOINTS, make_completion, stream_completion
from apood.serving.proxy.upstream import Upstream

__all__ = ["TOKEN_HEADER", "Rules", "find_texts", "make_proxy"]

TOKEN_HEADER = "x-apood-token"
"""The header of a token of the proxy; the header Authorization belongs to the upstream server."""

REFUSED = "out_of_distribution"
"""The code of the error that answers a refused request."""

_UNSEEN = (
    "chat_template", "documents", "image_data", "input_embeds", "input_extra", "input_ids", "prompt_embeds",
    "prompt_token_ids",
)  # fmt: skip


@dataclass(frozen=True)
class Rules:
    """How a proxy refuses.

    Attributes:
        other_parts: what to do with messages that have parts other than text.
        refusal_text: what a refused request is answered with, as an ordinary completion; None for an error.
    """

    other_parts: OtherParts = "refuse"
    refusal_text: str | None = None


def make_proxy(
    service: Service, upstream: Upstream, rules: Rules, tokens: Collection[str] = (), *, local: bool = True
) -> Asgi:
    """Return the application of a proxy; `tokens` and `local` are as in `Gate`."""
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import JSONResponse, StreamingResponse

    upstream.note_failure = service.metrics.count_upstream_failure

    async def guard(request: Request) -> Response:
        path, end = request.scope["path"], service.set_deadline()
        body, asked = await read_json(request, service.settings.most_bytes, end)
        served = service.served

        async def judge() -> list[Judgement]:
            texts = await work_on(body, lambda: find_texts(path, asked, served.chat, rules.other_parts))
            return await service.judge_texts(served, texts, end)

        outcome = await run_unless_gone(request, service.decide(served, judge()))
        tags = _make_tags(outcome, shadow=service.settings.shadow)
        if outcome.accepted:
            return upstream.pass_back(await run_unless_gone(request, upstream.send(request, body)), tags)
        if rules.refusal_text is None:
            error = HttpError(400, outcome.describe_refusal(), code=REFUSED)
            return JSONResponse(describe_error(error), error.status, tags)
        completion = make_completion(path, asked.get("model"), rules.refusal_text)
        if asked.get("stream") is True:
            events = stream_completion(path, completion)
            return StreamingResponse(
                events, headers={**tags, "cache-control": "no-cache"}, media_type="text/event-stream"
            )
        # The client names the model, perhaps with half a surrogate pair, which JSONResponse cannot write.
        return Response(json.dumps(completion), headers=tags, media_type="application/json")

    async def pass_on(request: Request) -> Response:
        # Dots would reach other paths of the upstream server, which may decode what is decoded here already.
        if {".", ".."} & set(re.split(r"[/\\;]", unquote(request.scope["path"]))):
            raise HttpError(404, "There is no such path.")
        return upstream.pass_back(await run_unless_gone(request, upstream.send(request, b"")), {})

    @asynccontextmanager
    async def live(_app: FastAPI) -> AsyncIterator[None]:
        async with keep_running(service):
            yield
        await upstream.close()

    app = FastAPI(openapi_url=None, redirect_slashes=False, lifespan=live)
    for path in ENDPOINTS:
        app.add_api_route(path, guard, methods=["POST"])
    # What carries no input. Other paths are refused: they would lead around the guard.
    for path in ("/v1/models", "/v1/models/{model:path}"):
        app.add_api_route(path, pass_on, methods=["GET"])
    app.include_router(make_status_router(service))
    add_error_handlers(app)
    return Gate(app, service, tokens, local=local, token_headers=(TOKEN_HEADER,), added={})


def find_texts(path: str, body: Mapping[str, Any], chat: Chat, other_parts: OtherParts) -> list[str]:
    """Return the texts of a request that are judged. Raise an error if there are none, or others beside them."""
    for name in _UNSEEN:
        if get_field(body, name):
            raise UnjudgedError(f"{name} adds to the input what cannot be judged.")
    if path == "/v1/chat/completions":
        return [choose_text(read_messages(get_field(body, "messages")), chat, other_parts)]
    if path == "/v1/responses":
        return [choose_text(read_responses_input(body, chat), chat, other_parts)]
    prompt, suffix = get_field(body, "prompt"), get_field(body, "suffix")
    texts = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise HttpError(400, "prompt must be a string or a list of strings: numbers of tokens cannot be judged.")
    if suffix is not None and not isinstance(suffix, str):
        raise HttpError(400, "suffix must be a string.")
    return [*texts, *([suffix] if suffix else [])]


def _make_tags(outcome: Outcome, *, shadow: bool) -> dict[str, str]:
    """Return the headers that tell what was decided."""
    tags = {"x-apood-detector": outcome.detector}
    if shadow:
        tags["x-apood-shadow"] = "true"
    if outcome.problem is not None:
        return {**tags, "x-apood-decision": "none", "x-apood-problem": outcome.problem.code}
    worst = min(outcome.judgements, key=lambda own: (own.accepted, own.score))
    tags["x-apood-decision"] = "ID" if worst.accepted else "OOD"
    if worst.score != -float("inf"):
        tags |= {"x-apood-score": f"{worst.score:.6g}", "x-apood-p-value": f"{worst.p_value:.6g}"}
    return tags
