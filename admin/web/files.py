"""Static files, the bundled style sheet, the catalog as a script module, and security headers.

Sources hold one style sheet per component; browsers get one for all, so the first paint waits for
a single request. No foreign content, no inline scripts, no frames below /admin.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omlx.catalog import catalog, data_dir
from omlx.server.http.guard import is_dashboard

from .addresses import STATIC
from .preferences import language_of
from .rendering import BUNDLE

WORDS: Final = f"{STATIC}/js/words.js"
STYLES: Final = f"{STATIC}/css/app.css"
_IMPORT: Final = re.compile(r'@import url\("([\w-]+\.css)"\) layer\((\w+)\);')
POLICY: Final = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def serve_files(app: FastAPI) -> None:
    """Serve them without a session: they hold nothing that a release does not."""
    app.add_middleware(SecurityHeaders)
    app.add_api_route(STYLES, show_styles, methods=["GET"], include_in_schema=False)
    app.add_api_route(WORDS, show_words, methods=["GET"], include_in_schema=False)
    app.mount(STATIC, StaticFiles(directory=data_dir("static")), name="static")


async def show_styles(request: Request) -> Response:
    return _cached(request, style_sheet(data_dir("static") / "css" / "app.css"), "text/css")


async def show_words(request: Request) -> Response:
    """Send the catalog in the browser's language. Scripts import it, so none runs without it."""
    module = f"export default {json.dumps(catalog(language_of(request)))};"
    return _cached(request, module, "text/javascript")


def style_sheet(path: Path) -> str:
    """Return the style sheet at `path` with every import replaced by its content in its layer."""

    def content(statement: re.Match[str]) -> str:
        file, layer = statement.groups()
        return f"@layer {layer} {{\n{(path.parent / file).read_text(encoding='utf-8')}}}"

    return _IMPORT.sub(content, path.read_text(encoding="utf-8"))


def _cached(request: Request, text: str, media_type: str) -> Response:
    """Answer 304 if the browser has this content already."""
    content = text.encode()
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return Response(content, media_type=media_type, headers={"ETag": tag})


class SecurityHeaders:
    """ASGI middleware. Pages are never stored; browsers revalidate files, except bundled scripts,
    whose names change with their content."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_dashboard(scope["path"]):
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", _caching(scope["path"], message["status"]))
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _caching(path: str, status: int) -> str:
    if path.startswith(f"{STATIC}/{BUNDLE}/") and status in (200, 304):
        return "max-age=31536000, immutable"
    return "no-cache" if path.startswith(f"{STATIC}/") else "no-store"
