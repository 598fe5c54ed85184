"""GET /health and /metrics, for what supervises the server."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import JSONResponse, Response

from omlx.server import errors
from omlx.server.api_keys import check_main
from omlx.server.services import Services


class HealthEndpoints:
    def __init__(self, services: Services) -> None:
        self._engine = services.engine
        self._metrics = services.metrics

    async def health(self, request: Request) -> Response:
        """200 while the engine thread lives. Says nothing about models."""
        if self._engine.failure is not None:
            return JSONResponse({"status": "error", **errors.openai(self._engine.failure)}, 503)
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Metrics in the format of Prometheus."""
        check_main(request.scope)
        content, content_type = self._metrics.scrape(request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": content_type})
