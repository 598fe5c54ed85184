"""Addresses as programs join them: without `/v1`, with one too many, with a slash too many."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

VERSION: Final = "v1"
_VERSIONED: Final = frozenset(
    {"chat", "completions", "embeddings", "messages", "models", "rerank", "responses"}
)
"""First segments of the paths below `/v1`."""
_OTHERS: Final = frozenset(
    {VERSION, "v2", "api", "detokenize", "health", "metrics", "openapi.json", "tokenize"}
)
"""First segments of the other paths of APIs."""


class PathVersion:
    """Brings the paths of APIs into their form, before anything looks at them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw_path = canonical(scope["raw_path"].decode("latin-1")).encode("latin-1")
            scope = {**scope, "path": canonical(scope["path"]), "raw_path": raw_path}
        await self._app(scope, receive, send)


def canonical(path: str) -> str:
    """Return the path of an API without empty segments, with one `/v1`; others as they are."""
    segments = [segment for segment in path.split("/") if segment]
    while segments[:1] == [VERSION] and segments[1:2] and segments[1] in _VERSIONED | _OTHERS:
        segments = segments[1:]
    if not segments or segments[0] not in _VERSIONED | _OTHERS:
        return path
    if segments[0] in _VERSIONED:
        segments.insert(0, VERSION)
    return "/" + "/".join(segments)
