"""HTML pages: session check, language, theme, and the layout around each page.

A page is a function from a request to a `Page`, a template with its data. `Pages.route` redirects
to the login without a session, and renders NotFound and ConfigError as an error page.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response

from omlx.catalog import languages
from omlx.errors import ConfigError, NotFound
from omlx.server.app import misrouted
from omlx.server.http import errors
from omlx.server.http.guard import is_dashboard

from .addresses import ACTIVITY, CHAT, CONNECT, HOME, LOGIN, MODELS, SETTINGS
from .preferences import THEMES, language_of, theme_of
from .rendering import cached, render

SECTIONS: Final = (
    ("chat", CHAT),
    ("overview", HOME),
    ("models", MODELS),
    ("activity", ACTIVITY),
    ("connect", CONNECT),
    ("settings", SETTINGS),
)

WANTED_COOKIE: Final = "omlx_wanted"
WANTED_S: Final = 3600
"""Seconds — as long as a login link is valid."""

MAX_PARTS: Final = 32
"""Rendered parts cached per route: an entry for each address and language."""


@dataclass(frozen=True, slots=True)
class Page:
    """A template, its data as `view`, and the highlighted entry of the navigation."""

    template: str
    view: object = None
    section: str = ""
    status: int = 200


@dataclass(frozen=True, slots=True)
class Shell:
    """Data of the layout around a page. `here`: address to return to."""

    section: str
    here: str
    language: str
    languages: Sequence[str]
    theme: str
    logged_in: bool
    themes: Sequence[str] = THEMES
    sections: Sequence[tuple[str, str]] = SECTIONS


Show = Callable[[Request], Awaitable[Page]]


def page(template: str, view: Callable[[Request], Awaitable[object]], section: str = "") -> Show:
    async def show(request: Request) -> Page:
        return Page(template, await view(request), section)

    return show


class Pages:
    """Collects the routes of pages. `logged_in`: whether a request has a session."""

    def __init__(self, logged_in: Callable[[Request], bool]) -> None:
        self._logged_in = logged_in
        self.router = APIRouter()

    def route(self, path: str, show: Show, *, public: bool = False) -> None:
        """Answer GET at `path` with the page of `show`; without a session only if `public`."""

        async def answer(request: Request) -> Response:
            if not public and not self._logged_in(request):
                wanted = quote(_address(request), safe="")
                login = RedirectResponse(f"{LOGIN}?next={wanted}", 303)
                login.set_cookie(
                    WANTED_COOKIE, _address(request), WANTED_S, path=LOGIN, httponly=True
                )
                return login
            try:
                return self.answer(request, await show(request))
            except (NotFound, ConfigError) as error:
                return self.answer(request, Page("error/page.html", error, status=error.status))

        self.router.add_api_route(path, answer, methods=["GET"], include_in_schema=False)

    def part(self, path: str, show: Show) -> None:
        """Answer GET at `path` with a part of a page; 401 without a session.

        Scripts fetch parts every few seconds. A browser with the current content gets 304.
        """
        parts = PartCache(self.render)

        async def answer(request: Request) -> Response:
            if not self._logged_in(request):
                return Response(status_code=401)
            try:
                return parts.answer(request, await show(request))
            except (NotFound, ConfigError) as error:
                return Response(status_code=error.status)

        self.router.add_api_route(path, answer, methods=["GET"], include_in_schema=False)

    def form(self, path: str, action: Callable[[Request], Awaitable[Response]]) -> None:
        """Answer POST at `path`, the address of an HTML form, with or without a session."""
        self.router.add_api_route(path, action, methods=["POST"], include_in_schema=False)

    async def misrouted(self, request: Request, error: Exception) -> Response:
        """Answer a missing dashboard page with an error page for browsers, else with JSON."""
        assert isinstance(error, HTTPException)
        wants_page = "text/html" in request.headers.get("accept", "")
        if error.status_code != 404 or not wants_page or not is_dashboard(request.url.path):
            return await misrouted(request, error)
        view = errors.from_http(error, request.scope)
        return self.answer(request, Page("error/page.html", view, status=404))

    def answer(self, request: Request, page: Page) -> Response:
        headers = {"Content-Language": language_of(request)}
        return HTMLResponse(self.render(request, page), page.status, headers=headers)

    def render(self, request: Request, page: Page) -> str:
        shell = Shell(
            section=page.section,
            here=_address(request),
            language=language_of(request),
            languages=languages(),
            theme=theme_of(request),
            logged_in=self._logged_in(request),
        )
        return render(page.template, shell.language, view=page.view, shell=shell)


def _address(request: Request) -> str:
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path


class PartCache:
    """The newest content of each part. Rendering is skipped for a page equal to the last.

    A page's data must therefore not change after it was returned: frozen dataclasses.
    """

    def __init__(self, render: Callable[[Request, Page], str]) -> None:
        self._render = render
        self._parts: OrderedDict[tuple[str, str], tuple[Page | None, str]] = OrderedDict()

    def answer(self, request: Request, page: Page) -> Response:
        """Answer 304 if the browser has this content already."""
        language = language_of(request)
        key = (str(request.url), language)
        # Reinserted below as the newest part.
        known, content = self._parts.pop(key, (None, ""))
        if known != page:
            known, content = page, self._render(request, page)
        self._parts[key] = known, content
        if len(self._parts) > MAX_PARTS:
            self._parts.popitem(last=False)
        answer = cached(request, content, "text/html")
        answer.headers["Content-Language"] = language
        return answer
