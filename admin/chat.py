"""The chat page. Conversations are stored in the browser; the server renders their frame."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from omlx.catalog import data_dir
from omlx.errors import NotFound
from omlx.server.endpoints.model_cards import ModelCards
from omlx.server.endpoints.models import ModelEndpoints
from omlx.server.endpoints.responses import ResponseEndpoints
from omlx.server.http.guard import OWNER
from omlx.server.services import Services

from .models.model_snapshot import ModelSnapshots
from .web.addresses import CHAT
from .web.pages import Pages, page

DASHBOARD: Final = "/admin"
"""Owner of the chat's responses. No key can have this name."""


@dataclass(frozen=True, slots=True)
class ChatView:
    """`model`: the initial choice among `models`, None if there are none.

    `has_own`: models beyond the package's exist. `has_markdown`: the libraries that render answers
    are installed.
    """

    models: Sequence[str]
    model: str | None
    has_own: bool
    has_markdown: bool


@dataclass(frozen=True, slots=True)
class ChatPage:
    """The page, and the server's Responses API for a browser with a session.

    Its responses have an owner of their own: API clients cannot read them, nor the page theirs.
    Responses are generated in the background, so that a reloaded page can follow them, and
    recorded, so that the next process continues them.
    """

    snapshots: ModelSnapshots
    responses: ResponseEndpoints
    models: ModelEndpoints

    @classmethod
    def of(
        cls, services: Services, snapshots: ModelSnapshots, responses: ResponseEndpoints
    ) -> ChatPage:
        return cls(snapshots, responses, ModelEndpoints(services, ModelCards(services.pool)))

    def register(self, pages: Pages, api: APIRouter) -> None:
        response = "/chat/responses/{id}"
        pages.route(CHAT, page("chat/page.html", self._view, "chat"))
        api.add_api_route("/chat/models", self.models.list_models, methods=["GET"])
        for method, path, endpoint in (
            ("POST", "/chat/responses", self.responses.create),
            ("GET", response, self.responses.show),
            ("DELETE", response, self.forget),
            ("POST", f"{response}/cancel", self.responses.cancel),
        ):
            own = [Depends(owned_by_dashboard)]
            api.add_api_route(path, endpoint, methods=[method], dependencies=own)

    async def _view(self, request: Request) -> ChatView:
        pool = self.snapshots.pool
        models = pool.catalog.ids
        wanted = (request.query_params.get("model"), self.snapshots.first, *models)
        return ChatView(
            models=models,
            model=next((name for name in wanted if name in models), None),
            has_own=bool(pool.registry.own),
            has_markdown=(data_dir("static") / "vendor" / "marked").is_dir(),
        )

    async def forget(self, request: Request, id: str) -> Response:
        """Delete a stored response; repeated deletions, from several windows, succeed."""
        with suppress(NotFound):
            await self.responses.delete(request, id)
        return Response(status_code=204)


async def owned_by_dashboard(request: Request) -> None:
    """Give a request's responses to the dashboard."""
    request.scope[OWNER] = DASHBOARD
