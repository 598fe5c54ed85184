"""What pages load: style sheets and modules from `static/`, and the words that modules say, in the page's language.

People read one style sheet a component, browsers get one for all: the first paint waits for a single request.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from omlx.catalog import catalog, data_dir

from .headers import SecurityHeaders
from .pages import language_of
from .rendering import STATIC

WORDS: Final = f"{STATIC}/js/words.json"
STYLES: Final = f"{STATIC}/css/app.css"
_IMPORT: Final = re.compile(r'@import url\("([\w-]+\.css)"\) layer\((\w+)\);')


def serve_files(app: FastAPI) -> None:
    """Open to everybody: there is nothing in them that a wheel does not tell."""
    app.add_middleware(SecurityHeaders, files=STATIC)
    app.add_api_route(STYLES, show_styles, methods=["GET"], include_in_schema=False)
    app.add_api_route(WORDS, show_words, methods=["GET"], include_in_schema=False)
    app.mount(STATIC, StaticFiles(directory=data_dir("static")), name="static")


async def show_styles(request: Request) -> Response:
    return _unless_known(request, style_sheet(data_dir("static") / "css" / "app.css"), "text/css")


async def show_words(request: Request) -> Response:
    """A module that others import, so that they run before the page counts as loaded: no click comes too early."""
    return _unless_known(request, json.dumps(catalog(language_of(request))), "application/json")


def style_sheet(path: Path) -> str:
    """The style sheet at `path` with those beside it that it imports, each in its layer."""

    def imported(found: re.Match[str]) -> str:
        return f"@layer {found[2]} {{\n{(path.parent / found[1]).read_text(encoding='utf-8')}}}"

    return _IMPORT.sub(imported, path.read_text(encoding="utf-8"))


def _unless_known(request: Request, text: str, media_type: str) -> Response:
    content = text.encode()
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return Response(content, media_type=media_type, headers={"ETag": tag})
