"""The chat page, and the tools that it calls, after it has asked the user.

Conversations are stored in the browser, and in the home folder if so set.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from omlx.catalog import data_dir
from omlx.errors import BadRequest, NotFound, OmlxError
from omlx.models.catalog.catalog import Profile
from omlx.models.pool.served import reason_to_json
from omlx.server.endpoints.model_cards import ModelCard, ModelCards
from omlx.server.endpoints.responses import ResponseEndpoints
from omlx.server.http.body import Json
from omlx.server.http.connection import while_connected
from omlx.server.http.errors import field_error
from omlx.server.http.guard import OWNER
from omlx.server.request.fields import read
from omlx.server.request.generation import GenerationService
from omlx.server.request.generation_request import SAMPLING
from omlx.server.request.media.parts import MAX_BYTES
from omlx.server.services import Services
from omlx.settings.parse import to_json
from omlx.tools.toolbox import Toolbox

from .chat_store import FOLDER, ChatStore, ChatStoreEndpoints
from .models.model_snapshot import ModelSnapshots
from .web.addresses import CHAT
from .web.pages import Pages, page
from .web.preferences import Strict

DASHBOARD: Final = "/admin"
"""Owner of the chat's responses. No key can have this name."""


@dataclass(frozen=True, slots=True)
class ChatView:
    """`model`: the initial choice among `models`, None if there are none.

    `tool_servers`: names of those in the settings.
    `has_own`: models beyond the package's exist. `has_markdown`: the libraries that render answers
    are installed. `is_stored`: the server keeps conversations, too.
    """

    models: Sequence[str]
    model: str | None
    tool_servers: Sequence[str]
    has_own: bool
    has_markdown: bool
    is_stored: bool

    @property
    def sampling(self) -> Sequence[str]:
        """Names of sampling settings without a place of their own."""
        return [name for name in SAMPLING if name != "temperature"]


@dataclass(frozen=True, slots=True)
class ChatPage:
    """The page, and the server's Responses API for a browser with a session.

    Its responses have an owner of their own: API clients cannot read them, nor the page theirs.
    Responses are generated in the background, so that a reloaded page can follow them, and
    recorded, so that the next process continues them.
    """

    snapshots: ModelSnapshots
    responses: ResponseEndpoints
    generations: GenerationService
    cards: ModelCards
    toolbox: Toolbox
    stored: ChatStoreEndpoints

    @classmethod
    def of(
        cls, services: Services, snapshots: ModelSnapshots, responses: ResponseEndpoints, home: Path
    ) -> ChatPage:
        catalog = services.pool.catalog

        def is_on() -> bool:
            return catalog.configuration.resolve().settings.chat_store

        stored = ChatStoreEndpoints(ChatStore(home / FOLDER), is_on)
        cards = ModelCards(services.pool)
        return cls(snapshots, responses, services.generations, cards, services.toolbox, stored)

    def register(self, pages: Pages, api: APIRouter) -> None:
        response = "/chat/responses/{id}"
        pages.route(CHAT, page("chat/page.html", self._view, "chat"))
        api.add_api_route("/chat/models", self._list_models, methods=["GET"])
        api.add_api_route("/chat/files", self._read_file, methods=["POST"])
        self.stored.register(api)
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
            tool_servers=self.toolbox.names,
            has_own=bool(pool.registry.own),
            has_markdown=(data_dir("static") / "vendor" / "marked").is_dir(),
            is_stored=self.stored.is_on(),
        )

    async def _list_models(self, request: Request) -> Response:
        """List the models and profiles of the API, with facts for the choice among them."""
        drafts = await self.snapshots.drafts()
        records = [self._choice(card, drafts) for card in await self.cards.all()]
        return JSONResponse({"object": "list", "data": records})

    def _choice(self, card: ModelCard, drafts: frozenset[str]) -> Json:
        pool, entry = self.snapshots.pool, card.entry
        return card.record() | {
            "state": pool.status(entry.id).state.value,
            "fits": entry.size_bytes <= pool.limit_bytes,
            "profile": None if card.profile is None else _values(card.profile),
            "drafts_for_others": entry.id in drafts,
            "no_vision": None if card.no_vision is None else reason_to_json(card.no_vision),
        }

    async def _read_file(self, request: Request, model: str, name: str) -> Response:
        """Return the text of the file in the body, and the number of tokens in `model`.

        `tokens` is null for an unknown model. Raises BadRequest for a file without text.
        """
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > MAX_BYTES:
                raise field_error("file.limits", "file", name=name)
        read = await self.generations.file_text(bytes(data))
        if read.failure is not None:
            raise field_error(read.failure, "file", name=name)
        tokens = None
        with suppress(OmlxError):
            ids = await self.generations.tokenize(model, read.text, special=False, param="file")
            tokens = len(ids)
        return JSONResponse({"text": read.text, "tokens": tokens})

    async def forget(self, request: Request, id: str) -> Response:
        """Delete a stored response; repeated deletions, from several windows, succeed."""
        with suppress(NotFound):
            await self.responses.delete(request, id)
        return Response(status_code=204)


def _values(profile: Profile) -> Json:
    return {name: to_json(value) for name, value in profile.values.items()}


async def owned_by_dashboard(request: Request) -> None:
    """Give a request's responses to the dashboard."""
    request.scope[OWNER] = DASHBOARD


class Call(Strict):
    """Call of a tool; `arguments` is a JSON object as text, as the model wrote it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatTools:
    toolbox: Toolbox

    def register(self, api: APIRouter) -> None:
        api.add_api_route("/chat/tools/{server}", self._list, methods=["POST"])
        api.add_api_route("/chat/tools", self._call, methods=["POST"])

    async def _list(self, request: Request, server: str) -> Response:
        """Return the tools of a server, as the Responses API declares them.

        Starts the server, so no GET: browsers send those without an Origin.
        """
        await request.body()
        tools = await while_connected(request.receive, self.toolbox.tools(server))
        declared = [
            {
                "type": "function",
                "name": tool.full_name,
                "description": tool.description,
                "parameters": tool.schema,
            }
            for tool in tools
        ]
        return JSONResponse({"tools": declared})

    async def _call(self, request: Request) -> Response:
        """Call a tool; the result is a text for the model. Ends with the client."""
        call = read(Call, await request.body())
        called = self.toolbox.call(call.name, _arguments(call.arguments))
        result = await while_connected(request.receive, called)
        return JSONResponse({"text": result.text, "failed": result.failed})


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise BadRequest("toolbox.arguments", param="arguments") from error
    if not isinstance(arguments, dict):
        raise BadRequest("toolbox.arguments", param="arguments")
    return arguments
