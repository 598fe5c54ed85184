"""The dashboard as an app that browsers install: manifest, service worker, page without a server.

Public: they hold nothing beyond a release. No page and no answer of the API is stored by a browser.
"""

from __future__ import annotations

import json
from typing import Any, Final

from fastapi import FastAPI, Request
from starlette.responses import HTMLResponse, Response

from omlx.catalog import data_dir, sentence

from .addresses import HOME, STATIC
from .preferences import language_of
from .rendering import cached, render

MANIFEST: Final = f"{HOME}/manifest.webmanifest"
WORKER: Final = f"{HOME}/worker.js"
OFFLINE: Final = f"{HOME}/offline"

ICONS: Final = (("icon-192", 192, "any"), ("icon-512", 512, "any"), ("icon-full", 512, "maskable"))
"""File below `static/img`, pixels, purpose."""


def serve_app(app: FastAPI) -> None:
    for path, answer in (
        (MANIFEST, show_manifest),
        (WORKER, show_worker),
        (OFFLINE, show_offline),
    ):
        app.add_api_route(path, answer, methods=["GET"], include_in_schema=False)


def manifest(language: str) -> dict[str, Any]:
    return {
        "id": HOME,
        "name": "omlx",
        "short_name": "omlx",
        "description": sentence("ui.app.description", {}, language),
        "lang": sentence("ui.language.tag", {}, language),
        "start_url": HOME,
        "scope": HOME,
        "display": "standalone",
        "background_color": "#f7f7f5",
        "theme_color": "#0f766e",
        "icons": [
            {
                "src": f"{STATIC}/img/{file}.png",
                "sizes": f"{pixels}x{pixels}",
                "type": "image/png",
                "purpose": purpose,
            }
            for file, pixels, purpose in ICONS
        ],
    }


async def show_manifest(request: Request) -> Response:
    content = json.dumps(manifest(language_of(request)), ensure_ascii=False)
    answer = cached(request, content, "application/manifest+json")
    answer.headers["Cache-Control"] = "no-cache"
    return answer


async def show_worker(request: Request) -> Response:
    """Send the service worker. Its own folder would bound it to static files."""
    script = (data_dir("static") / "js" / "worker.js").read_text(encoding="utf-8")
    headers = {"Service-Worker-Allowed": HOME, "Cache-Control": "no-cache"}
    return Response(script, media_type="text/javascript", headers=headers)


async def show_offline(request: Request) -> Response:
    language = language_of(request)
    return HTMLResponse(render("app/offline.html", language, code=language))
