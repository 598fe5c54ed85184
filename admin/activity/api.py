"""API of requests: stop one that is being generated."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx.server.generation import GenerationService


@dataclass(frozen=True, slots=True)
class ActivityApi:
    generations: GenerationService

    def register(self, router: APIRouter) -> None:
        router.add_api_route("/requests/{id}/stop", self.stop, methods=["POST"])

    async def stop(self, request: Request, id: str) -> Response:
        """Stop a response; its client gets an error that says so. Raises NotFound if it is over."""
        self.generations.stop(id)
        return Response(status_code=204)
