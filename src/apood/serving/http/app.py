"""The application: its routes, and what they take and return."""

from collections.abc import Collection, Mapping
from importlib.resources import files
from typing import Any

from apood.data.conversations import OtherParts
from apood.pipeline.judging import Judgement
from apood.serving.http.access import PAGE_PATHS, Asgi, Gate
from apood.serving.http.bodies import get_content_type, read_body, read_json
from apood.serving.http.errors import HttpError
from apood.serving.http.guardrail import GUARDRAIL_PATH, answer_guardrail
from apood.serving.http.requests import add_error_handlers, keep_running, run_unless_gone
from apood.serving.http.schema import (
    EXPLAIN_BODY,
    GUARDRAIL_BODY,
    SCORE_ANSWER,
    SCORE_BODY,
    TOKEN_TYPES,
    describe_errors,
)
from apood.serving.http.service import Service
from apood.serving.http.status import make_status_router
from apood.support.files import replace_nonfinite
from apood.support.version import __version__
from apood.tokens.identity import FOLDER

__all__ = ["make_app"]

_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


def make_app(
    service: Service,
    tokens: Collection[str],
    *,
    local: bool,
    other_parts: OtherParts = "refuse",
) -> Asgi:
    """Return the application of a service.

    Args:
        service: the service.
        tokens: the access tokens, as in `Gate`.
        local: whether the server is bound to loopback, as in `Gate`.
        other_parts: what to do with messages that have parts other than text.
    """
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import JSONResponse

    app = FastAPI(
        title="apood",
        version=__version__,
        description="Tells whether inputs belong to the distribution that a model was trained on.",
        docs_url=None,  # the pages load scripts from other hosts
        redoc_url=None,
        lifespan=lambda _app: keep_running(service),
    )
    add_error_handlers(app)

    @app.post(
        "/v1/score",
        summary="Score one or many texts, or token arrays",
        openapi_extra=SCORE_BODY,
        responses=SCORE_ANSWER | describe_errors(400, 401, 403, 408, 413, 415, 422, 429, 500, 503, 504),
    )
    async def score(request: Request) -> Response:
        """Return one result per text: its score, p-value and decision.

        A result is `accepted` if its decision is ID, or in shadow mode. If the request could not be judged and passes
        by --on-error accept, or in shadow mode, there are no results, and `problem` says why.
        """
        kind, settings, end = get_content_type(request), service.settings, service.set_deadline()
        if kind == "application/json":
            _, content = await read_json(request, settings.most_bytes, end)
            texts, served = _get_texts(content), service.served
            judging = service.judge_texts(served, texts, end)
        elif kind in TOKEN_TYPES:
            body, served = await read_body(request, settings.most_bytes, end), service.served
            judging = service.judge_tokens(served, body, end)
        else:
            raise HttpError(415, f"The content type must be application/json or {TOKEN_TYPES[0]}.")
        outcome = await run_unless_gone(request, service.decide(served, judging))
        return JSONResponse(
            {
                "detector": outcome.detector,
                "shadow": settings.shadow,
                "accepted": outcome.accepted,
                "problem": None if outcome.problem is None else outcome.problem.message,
                "results": [_describe_judgement(own, shadow=settings.shadow) for own in outcome.judgements],
            }
        )

    @app.post(
        "/v1/explain",
        summary="Explain the score of one text",
        openapi_extra=EXPLAIN_BODY,
        responses=describe_errors(400, 401, 403, 408, 413, 415, 422, 429, 500, 503, 504),
    )
    async def explain(request: Request) -> Response:
        """Return the words and sentences of a text with what they contribute; places count characters."""
        end = service.set_deadline()
        _, body = await read_json(request, service.settings.most_bytes, end)
        if body.keys() != {"text"} or not isinstance(body["text"], str):
            raise HttpError(422, "The body must have text, a string, and nothing else.")
        return JSONResponse(await run_unless_gone(request, service.explain(body["text"], end)))

    @app.post(
        GUARDRAIL_PATH,
        summary="Answer the generic guardrail of LiteLLM",
        openapi_extra=GUARDRAIL_BODY,
        responses=describe_errors(400, 401, 403, 408, 413, 415, 422, 429, 500, 503, 504),
    )
    async def guardrail(request: Request) -> Response:
        """Return NONE if the input of a call may pass, and BLOCKED with a reason if not."""
        return JSONResponse(await answer_guardrail(request, service, other_parts))

    @app.get("/v1/detector", responses=describe_errors(401, 403, 503), summary="Describe the detector and the limits")
    async def detector() -> Response:
        """Return the method, its encoder, its calibration, and the limits of the service."""
        return JSONResponse(_describe_service(service))

    app.include_router(make_status_router(service))

    async def page(request: Request) -> Response:
        name = request.scope["path"].removeprefix("/") or "page.html"
        kind = {"html": "text/html", "css": "text/css", "js": "text/javascript"}[name.rpartition(".")[2]]
        content = files("apood.serving.http").joinpath(name).read_bytes()
        return Response(content, media_type=kind, headers={"content-security-policy": _PAGE_POLICY})

    for path in PAGE_PATHS:
        app.add_api_route(path, page, include_in_schema=False)
    return Gate(app, service, tokens, local=local)


def _describe_judgement(judgement: Judgement, *, shadow: bool) -> dict[str, Any]:
    """Return a decision as JSON. A score of -inf, which JSON lacks, is null."""
    scored = judgement.score != -float("inf")
    return {
        "accepted": shadow or judgement.accepted,
        "decision": "ID" if judgement.accepted else "OOD",
        "score": judgement.score if scored else None,
        "p_value": judgement.p_value,
        "passes_above": 1 - judgement.p_value if scored and judgement.p_value is not None else None,
        "tokens": judgement.tokens,
        "windows": judgement.windows,
        "truncated": judgement.truncated,
        "note": judgement.note,
    }


def _get_texts(body: Mapping[str, Any]) -> list[str]:
    if len(body) != 1 or not body.keys() <= {"text", "texts"}:
        raise HttpError(422, "The body must have either text, a string, or texts, a list of strings, and nothing else.")
    texts = [body["text"]] if "text" in body else body["texts"]
    if not isinstance(texts, list) or not texts:
        raise HttpError(422, "texts must be a list of at least one string.")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise HttpError(422, f"Texts must be strings, and the one at index {index} is not.")
    return texts


def _describe_service(service: Service) -> dict[str, Any]:
    served, settings = service.served, service.settings
    calibration, encoder = served.detector.calibration, served.detector.encoder_
    return {
        "detector": served.digest,
        "method": served.detector.name,
        "encoder": None if encoder is None else {key: value for key, value in encoder.items() if key != FOLDER},
        "takes": ["tokens"] if served.encoder is None else ["texts", "tokens"],
        "requires": sorted(served.detector.requires),
        "dim": served.detector.dim_,
        "accept": calibration.accept,
        "threshold": replace_nonfinite(calibration.threshold),
        "calibration_texts": len(calibration.scores),
        "chat": served.chat,
        "shadow": settings.shadow,
        "on_error": settings.on_error,
        "limits": {
            "deadline_seconds": settings.deadline,
            "body_bytes": settings.most_bytes,
            "texts": settings.most_texts,
            "tokens_per_text": settings.most_text_tokens,
            "tokens_in_flight": settings.most_tokens,
        },
        "version": __version__,
    }
