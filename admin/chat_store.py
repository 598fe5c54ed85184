"""Conversations of the chat page in `OMLX_HOME/chats`, while the setting `chat_store` is on.

A file per conversation, as a browser has sent it, with its time of change as its version. A deleted
conversation leaves an empty file, by which other browsers delete theirs.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from omlx.atomic_write import replace_file
from omlx.errors import BadRequest, ConfigError, NotFound
from omlx.server.http.body import Json, read_body
from omlx.server.http.errors import field_error

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
    """The API of stored conversations; NotFound while `is_on` says no."""

    store: ChatStore
    is_on: Callable[[], bool]

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
        if not self.is_on():
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
