"""The paths that tell how a service is: alive, ready, metrics, what would be refused. The proxy has them, too."""

from typing import TYPE_CHECKING

from apood.serving.http.schema import describe_errors
from apood.serving.http.service import Service

if TYPE_CHECKING:
    from fastapi import APIRouter

__all__ = ["make_status_router"]


def make_status_router(service: Service) -> "APIRouter":
    """Return the paths that tell how a service is."""
    from fastapi import APIRouter, Response
    from fastapi.responses import JSONResponse, PlainTextResponse

    router = APIRouter()

    @router.get("/v1/shadow", responses=describe_errors(401, 403), summary="Count what would be refused")
    async def shadow() -> Response:
        """Return how many texts would have been refused at a grid of accept rates, since the start, and the drift."""
        return JSONResponse(service.describe_shadow())

    @router.get("/healthz", status_code=204, response_class=Response, summary="Tell that the process is alive")
    async def healthz() -> Response:
        """Return an empty answer as long as the event loop runs."""
        return Response(status_code=204)

    @router.get(
        "/readyz",
        status_code=204,
        response_class=Response,
        responses=describe_errors(503),
        summary="Tell whether the detector is loaded and warm",
    )
    async def readyz() -> Response:
        """Return an empty answer once requests can be judged."""
        _ = service.served
        return Response(status_code=204)

    @router.get(
        "/metrics",
        response_class=PlainTextResponse,
        responses=describe_errors(401, 403),
        summary="Return metrics for Prometheus",
    )
    async def metrics() -> Response:
        """Return counts and times; nothing is made from an input."""
        content, kind = service.metrics.render(service.in_flight)
        return Response(content, media_type=kind)

    return router
