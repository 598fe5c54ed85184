"""Security headers below /admin: no foreign content, no inline scripts, no frames."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omlx.server.guard import is_dashboard

from .addresses import STATIC
from .scripts import BUNDLE

POLICY: Final = "; ".join(
    (
        "default-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


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
