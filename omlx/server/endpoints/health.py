"""GET /health and /metrics, for what supervises the server."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import Request
from starlette.responses import JSONResponse, Response

from omlx.engine.device_errors import DEVICE
from omlx.server.http import errors
from omlx.server.http.keys import check_main
from omlx.server.services import Services


class HealthEndpoints:
    def __init__(self, services: Services) -> None:
        self._engine = services.engine
        self._metrics = services.metrics

    async def health(self, request: Request) -> Response:
        """200 while the engine thread lives, with the newest error of the device, if there was one.
        Says nothing about models."""
        if self._engine.failure is not None:
            failed = {"status": "error", **errors.openai(self._engine.failure)}
            return JSONResponse({**failed, **_device_error()}, 503)
        return JSONResponse({"status": "ok", **_device_error()})

    async def metrics(self, request: Request) -> Response:
        """Metrics in the format of Prometheus."""
        check_main(request.scope)
        content, content_type = self._metrics.scrape(request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": content_type})


def _device_error() -> dict[str, Any]:
    """The newest device error: kind, mlx's text, Unix time; nothing if there was none."""
    return {} if DEVICE.last is None else {"device_error": asdict(DEVICE.last)}
