"""API of requests: stop one that is being generated, verify one that has ended."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from omlx.receipts.verifier import Verifier
from omlx.server.connection import while_connected
from omlx.server.generation import GenerationService


@dataclass(frozen=True, slots=True)
class ActivityApi:
    generations: GenerationService
    verifier: Verifier

    def register(self, router: APIRouter) -> None:
        router.add_api_route("/requests/{id}/stop", self.stop, methods=["POST"])
        router.add_api_route("/requests/{id}/verify", self.verify, methods=["POST"])

    async def stop(self, request: Request, id: str) -> Response:
        """Stop a response; its client gets an error that says so. Raises NotFound if it is over."""
        self.generations.stop(id)
        return Response(status_code=204)

    async def verify(self, request: Request, id: str) -> Response:
        """Decode a kept answer again, as `omlx verify`, between the passes of running requests.

        Ends if the browser disconnects. Raises as `Verifier.verify_answer`.
        """
        await request.body()
        verdicts = await while_connected(request.receive, self.verifier.verify_answer(id))
        same = all(verdict.same for verdict in verdicts)
        return JSONResponse({"same": same, "choices": [verdict.record() for verdict in verdicts]})
