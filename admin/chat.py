"""The chat page, and the tools that it calls, after it has asked the user.

Conversations are stored in the browser; with the setting `chat_store` also in `OMLX_HOME/chats`: a
file per conversation, as a browser has sent it, with its time of change as its version. A deleted
conversation leaves an empty file, by which other browsers delete theirs.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from omlx.catalog import data_dir
from omlx.errors import BadRequest, ConfigError, NotFound, OmlxError, optional_reason
from omlx.models.pool.pool import Pool
from omlx.server.endpoints.models import ModelCard, ModelCards
from omlx.server.endpoints.responses import ResponseEndpoints
from omlx.server.http.errors import field_error
from omlx.server.http.guard import OWNER
from omlx.server.http.transport import Json, read_body, while_connected
from omlx.server.request.content import MAX_BYTES
from omlx.server.request.generation_request import SAMPLING
from omlx.server.services import Services
from omlx.settings.layers import to_json
from omlx.storage import replace_file

from .models.model_snapshot import ModelSnapshots
from .web.addresses import CHAT
from .web.pages import Pages, page
from .web.preferences import Strict

FOLDER: Final = "chats"
PATH: Final = "/chat/conversations"
_ID: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")
_SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored conversation. `version` changes with every write."""

    id: str
    version: str
    deleted: bool


@dataclass(frozen=True, slots=True)
class ChatStore:
    """The files in `folder`, which the first write creates.

    Raises NotFound for a conversation that is not stored, ConfigError if the disk fails.
    """

    folder: Path

    def entries(self) -> list[Entry]:
        """Return all conversations. Other files in the folder, as copies by hand, are left out."""
        found = [
            (path.name.removesuffix(_SUFFIX), path) for path in self.folder.glob(f"*{_SUFFIX}")
        ]
        own = [(id, path.stat()) for id, path in found if _ID.fullmatch(id) is not None]
        return [Entry(id, str(status.st_mtime_ns), status.st_size == 0) for id, status in own]

    def read(self, id: str) -> bytes:
        try:
            content = self._path(id).read_bytes()
        except FileNotFoundError:
            content = b""
        if not content:
            raise NotFound("chat.not_stored", id=id)
        return content

    def write(self, id: str, content: bytes) -> str:
        """Replace a conversation, and return its version. Empty: it was deleted."""
        path = self._path(id)
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            replace_file(path, content)
        except OSError as error:
            detail = error.strerror or str(error)
            raise ConfigError("config.unwritable", file=str(path), detail=detail) from error
        return str(path.stat().st_mtime_ns)

    def delete_all(self) -> None:
        for entry in self.entries():
            if not entry.deleted:
                self.write(entry.id, b"")

    def _path(self, id: str) -> Path:
        if _ID.fullmatch(id) is None:
            raise NotFound("chat.not_stored", id=id)
        return self.folder / f"{id}{_SUFFIX}"


@dataclass(frozen=True, slots=True)
class ChatStoreEndpoints:
    """The API of stored conversations; NotFound while the setting is off."""

    store: ChatStore
    pool: Pool

    @property
    def on(self) -> bool:
        return self.pool.catalog.configuration.resolve().settings.chat_store

    def register(self, api: APIRouter) -> None:
        one = f"{PATH}/{{id}}"
        for method, path, endpoint in (
            ("GET", PATH, self.index),
            ("DELETE", PATH, self.delete_all),
            ("GET", one, self.show),
            ("PUT", one, self.replace),
            ("DELETE", one, self.delete),
        ):
            own = [Depends(self._check)]
            api.add_api_route(path, endpoint, methods=[method], dependencies=own)

    async def _check(self) -> None:
        if not self.on:
            raise NotFound("chat.store_off")

    async def index(self) -> Response:
        entries = await asyncio.to_thread(self.store.entries)
        return JSONResponse({"data": [asdict(entry) for entry in entries]})

    async def show(self, id: str) -> Response:
        content = await asyncio.to_thread(self.store.read, id)
        return Response(content, media_type="application/json")

    async def replace(self, request: Request, id: str) -> Response:
        content = await read_body(request, partial(_checked, id))
        version = await asyncio.to_thread(self.store.write, id, content)
        return JSONResponse({"id": id, "version": version})

    async def delete(self, id: str) -> Response:
        await asyncio.to_thread(self.store.write, id, b"")
        return Response(status_code=204)

    async def delete_all(self) -> Response:
        await asyncio.to_thread(self.store.delete_all)
        return Response(status_code=204)


def _checked(id: str, body: bytes) -> bytes:
    """Return the body of a conversation. Raises BadRequest for another one, or none."""
    try:
        value: Json = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest("request.json", detail=str(error)) from error
    head = value.get("head") if isinstance(value, dict) else None
    if not isinstance(head, dict) or head.get("id") != id:
        raise field_error("request.value", "head.id", expected=id)
    return body


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

    services: Services
    snapshots: ModelSnapshots
    responses: ResponseEndpoints
    cards: ModelCards
    stored: ChatStoreEndpoints

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
        api.add_api_route("/chat/tools/{server}", self._list, methods=["POST"])
        api.add_api_route("/chat/tools", self._call, methods=["POST"])

    async def _view(self, request: Request) -> ChatView:
        pool = self.services.pool
        models = pool.catalog.ids
        wanted = (request.query_params.get("model"), self.snapshots.first, *models)
        return ChatView(
            models=models,
            model=next((name for name in wanted if name in models), None),
            tool_servers=self.services.toolbox.names,
            has_own=bool(pool.registry.own),
            has_markdown=(data_dir("static") / "vendor" / "marked").is_dir(),
            is_stored=self.stored.on,
        )

    async def _list_models(self, request: Request) -> Response:
        """List the models and profiles of the API, with facts for the choice among them."""
        drafts = await self.snapshots.drafts()
        records = [self._choice(card, drafts) for card in await self.cards.all()]
        return JSONResponse({"object": "list", "data": records})

    def _choice(self, card: ModelCard, drafts: frozenset[str]) -> Json:
        pool, entry = self.services.pool, card.entry
        return card.record() | {
            "state": pool.status(entry.id).state.value,
            "fits": entry.size_bytes <= pool.limit_bytes,
            "profile": card.profile and {k: to_json(v) for k, v in card.profile.values.items()},
            "drafts_for_others": entry.id in drafts,
            "no_vision": optional_reason(card.no_vision),
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
        read = await self.services.generations.file_text(bytes(data))
        if read.failure is not None:
            raise field_error(read.failure, "file", name=name)
        tokens = None
        with suppress(OmlxError):
            work = self.services.generations.tokenize(model, read.text, special=False, param="file")
            tokens = len(await work)
        return JSONResponse({"text": read.text, "tokens": tokens})

    async def forget(self, request: Request, id: str) -> Response:
        """Delete a stored response; repeated deletions, from several windows, succeed."""
        with suppress(NotFound):
            await self.responses.delete(request, id)
        return Response(status_code=204)

    async def _list(self, request: Request, server: str) -> Response:
        """Return the tools of a server, as the Responses API declares them.

        Starts the server, so no GET: browsers send those without an Origin.
        """
        await request.body()
        tools = await while_connected(request.receive, self.services.toolbox.tools(server))
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
        call = Call.parse(await request.body())
        called = self.services.toolbox.call(call.name, _arguments(call.arguments))
        result = await while_connected(request.receive, called)
        return JSONResponse({"text": result.text, "failed": result.failed})


async def owned_by_dashboard(request: Request) -> None:
    """Give a request's responses to the dashboard."""
    request.scope[OWNER] = DASHBOARD


class Call(Strict):
    """Call of a tool; `arguments` is a JSON object as text, as the model wrote it."""

    name: str
    arguments: str


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise BadRequest("toolbox.arguments", param="arguments") from error
    if not isinstance(arguments, dict):
        raise BadRequest("toolbox.arguments", param="arguments")
    return arguments
