"""API of the chat page: the server's Responses API for a browser with a session.

Its responses are stored apart from those of API clients: neither can read the other's. A response
is generated in the background, so that a page that was reloaded can follow it again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx.errors import NotFound
from omlx.server.app import KEEP_ALIVE_S
from omlx.server.model_cards import ModelCards
from omlx.server.models import ModelEndpoints
from omlx.server.openai.responses.endpoint import ResponseEndpoints, owned_by
from omlx.server.responder import Responder
from omlx.server.services import Services


@dataclass(frozen=True, slots=True)
class ChatApi:
    responses: ResponseEndpoints
    models: ModelEndpoints

    @classmethod
    def of(cls, services: Services) -> ChatApi:
        responder = Responder(services.generations, KEEP_ALIVE_S)
        responses = ResponseEndpoints(responder, services.generations)
        return cls(responses, ModelEndpoints(services, ModelCards(services.pool)))

    def register(self, router: APIRouter) -> None:
        response = "/chat/responses/{id}"
        router.add_api_route("/chat/models", self.models.list_models, methods=["GET"])
        router.add_api_route("/chat/responses", self.responses.create, methods=["POST"])
        router.add_api_route(response, self.responses.show, methods=["GET"])
        router.add_api_route(response, self.forget, methods=["DELETE"])
        router.add_api_route(f"{response}/cancel", self.responses.cancel, methods=["POST"])

    async def forget(self, request: Request, id: str) -> Response:
        """Delete a response that browsers have; several windows may say so."""
        with suppress(NotFound):
            self.responses.store.delete(owned_by(request, id))
        return Response(status_code=204)
