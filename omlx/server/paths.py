"""Paths without `/v1`: half of all programs are given an address without it."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

VERSION: Final = "/v1"
_FIRST: Final = frozenset(
    {"chat", "completions", "embeddings", "messages", "models", "rerank", "responses"}
)
"""First segments of the paths below `/v1`."""


class PathVersion:
    """Adds the `/v1` that is missing, before anything looks at the path."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].removeprefix("/").split("/")[0] in _FIRST:
            raw_path = VERSION.encode() + scope["raw_path"]
            scope = {**scope, "path": VERSION + scope["path"], "raw_path": raw_path}
        await self._app(scope, receive, send)
