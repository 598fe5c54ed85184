"""Templates, style sheet, scripts, catalog and other files of pages, with security headers.

Each language has a Jinja environment, in which undefined variables are errors. Sources hold a style
sheet per component; browsers get a single one, so the first paint waits for one request.

Scripts are bundled by `make assets`, or served as modules. `static/bundle` holds `ENTRY-HASH.js`
and a source map with the text of every module. A bundle is used while these texts equal the files,
so no page runs an outdated bundle. File changes take effect when the next page is rendered. No
foreign content, no inline scripts, no frames below /admin, but for `FRAME`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI, Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.datastructures import MutableHeaders
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omlx.catalog import catalog, data_dir, sentence
from omlx.server.http.guard import is_dashboard
from omlx.settings.file import FileStamp, file_stamp

from . import formats
from .addresses import HOME, STATIC, model_path
from .preferences import language_of

BUNDLE: Final = "bundle"
"""Folder of bundles below `static/`, with files named by their content."""

ENTRIES: Final = {"app": "js/app.js", "chat": "js/chat/chat.js"}
"""Modules loaded by pages, below `static/`: `chat` on the chat page, `app` on every other."""

log = logging.getLogger("omlx.admin")


def render(template: str, language: str, **context: object) -> str:
    """Render the template at a path below `templates/`."""
    return _environment(language).get_template(template).render(context)


@cache
def _environment(language: str) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(data_dir("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        # `t('ui.nav.models')`, `t(reason.code, **reason.params)`
        "t": lambda key, /, **params: sentence(key, params, language),
        "static": _static,
        "script": lambda entry: _static(_scripts().path(entry)),
        "language_name": partial(sentence, "ui.language.name", {}),
        "model_path": model_path,
        "zip": zip,
    }
    figures = (formats.ratio, formats.percent, formats.rate, formats.count, formats.context)
    bytes_ = (formats.parameters, formats.memory, formats.disk, formats.prompt_length)
    others = (*bytes_, formats.clock, formats.moment, formats.timestamp)
    environment.filters |= {filter_.__name__: filter_ for filter_ in (*figures, *others)}
    for filter_ in (formats.duration, formats.elapsed):
        environment.filters[filter_.__name__] = partial(filter_, language=language)
    return environment


@cache
def _scripts() -> Scripts:
    return Scripts(data_dir("static"))


def _static(path: str) -> str:
    return f"{STATIC}/{path}"


class Scripts:
    """Scripts below a folder `static`."""

    def __init__(self, static: Path) -> None:
        self._static = static
        self._bundles: dict[Path, _Bundle] = {}
        self._logged: set[str] = set()

    def path(self, entry: str) -> str:
        """Return the path of the entry's script below `static`."""
        source_map = next((self._static / BUNDLE).glob(f"{entry}-*.js.map"), None)
        if source_map is None:
            return self._modules(entry, f"{BUNDLE}/")
        if source_map not in self._bundles:
            self._bundles[source_map] = _Bundle(source_map)
        changed = self._bundles[source_map].changed()
        if changed is not None:
            return self._modules(entry, changed)
        return f"{BUNDLE}/{source_map.stem}"

    def _modules(self, entry: str, reason: str) -> str:
        """Return the path of the entry's module. Logs once that the file `reason` differs."""
        if reason not in self._logged:
            self._logged.add(reason)
            fields = {"missing_or_changed": reason, "repair": "make assets"}
            log.info("the dashboard's scripts are loaded one by one", extra={"fields": fields})
        return ENTRIES[entry]


class _Bundle:
    """A bundled script's modules, from its source map at `path`."""

    def __init__(self, path: Path) -> None:
        source_map = json.loads(path.read_bytes())
        sources = [(path.parent / name).resolve() for name in source_map["sources"]]
        self._texts = dict(zip(sources, source_map["sourcesContent"], strict=True))
        self._stamps: list[FileStamp] = []
        self._changed: str | None = None

    def changed(self) -> str | None:
        """Return the name of a module changed since bundling. Reads all if any file's stamp
        changed.
        """
        stamps = [file_stamp(path) for path in self._texts]
        if stamps != self._stamps:
            self._stamps = stamps
            differing = (
                path.name
                for path, text in self._texts.items()
                if not path.is_file() or path.read_bytes() != text.encode()
            )
            self._changed = next(differing, None)
        return self._changed


WORDS: Final = f"{STATIC}/js/words.js"
STYLES: Final = f"{STATIC}/css/app.css"
_OF_NO_SCRIPT: Final = re.compile(r"cli\.|settings\..*\.help$")
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

FRAME: Final = f"{STATIC}/frame.html"
FRAME_HEADERS: Final = {
    **HEADERS,
    "Content-Security-Policy": (
        "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
        "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; media-src data: blob:; "
        "frame-ancestors 'self'"
    ),
    "X-Frame-Options": "SAMEORIGIN",
}
"""Headers of the frame for previews of answers: any script and style, no origin, no network."""


def serve_files(app: FastAPI) -> None:
    """Serve files without a session: they hold nothing beyond a release."""
    app.add_middleware(SecurityHeaders)
    for path, answer in (
        (STYLES, show_styles),
        (WORDS, show_words),
        (MANIFEST, show_manifest),
        (WORKER, show_worker),
        (OFFLINE, show_offline),
    ):
        app.add_api_route(path, answer, methods=["GET"], include_in_schema=False)
    app.mount(STATIC, StaticFiles(directory=data_dir("static")), name="static")


async def show_styles(request: Request) -> Response:
    return cached(request, style_sheet(data_dir("static") / "css" / "app.css"), "text/css")


async def show_words(request: Request) -> Response:
    """Send the catalog in the browser's language. Scripts import it, so none runs without it.

    Sentences of commands, and help that pages alone have, are left out: every page waits for it.
    """
    known = catalog(language_of(request)).items()
    words = {key: text for key, text in known if not _OF_NO_SCRIPT.match(key)}
    text = json.dumps(words, ensure_ascii=False, separators=(",", ":"))
    module = f"export default {text};"
    return cached(request, module, "text/javascript")


def style_sheet(path: Path) -> str:
    """Return the style sheet at `path` with imports replaced by their content, in layers."""

    def content(statement: re.Match[str]) -> str:
        file, layer = statement.groups()
        return f"@layer {layer} {{\n{(path.parent / file).read_text(encoding='utf-8')}}}"

    return _IMPORT.sub(content, path.read_text(encoding="utf-8"))


def cached(request: Request, text: str, media_type: str) -> Response:
    content = text.encode()
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return Response(content, media_type=media_type, headers={"ETag": tag})


class SecurityHeaders:
    """ASGI middleware. Pages are never stored; browsers revalidate files.

    Exception: bundled scripts, whose names change with their content.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_dashboard(scope["path"]):
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(FRAME_HEADERS if scope["path"] == FRAME else HEADERS)
                headers.setdefault("Cache-Control", _caching(scope["path"], message["status"]))
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _caching(path: str, status: int) -> str:
    if path.startswith(f"{STATIC}/{BUNDLE}/") and status in (200, 304):
        return "max-age=31536000, immutable"
    return "no-cache" if path.startswith(f"{STATIC}/") else "no-store"


MANIFEST: Final = f"{HOME}/manifest.webmanifest"
WORKER: Final = f"{HOME}/worker.js"
OFFLINE: Final = f"{HOME}/offline"

ICONS: Final = (("icon-192", 192, "any"), ("icon-512", 512, "any"), ("icon-full", 512, "maskable"))
"""File below `static/img`, pixels, purpose."""


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
