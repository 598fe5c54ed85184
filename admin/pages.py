"""From a view to a page: language, theme, who may see it, and what stands around every page.

A page is a function from a request to a `Page`, which names a template and gives it plain data. `Pages.route` adds the
rest: whoever has not logged in is sent to do so; what is not there, or not as it should be, gets a page that says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response

from omlx.catalog import languages
from omlx.errors import ConfigError, NotFound
from omlx.server import errors
from omlx.server.app import misrouted
from omlx.server.guard import is_dashboard

from . import language
from .login.credentials import LOGIN
from .login.routes import Gate
from .rendering import render

THEME_COOKIE: Final = "omlx_theme"
THEMES: Final = ("auto", "light", "dark")
HOME: Final = "/admin"
SECTIONS: Final = (
    ("overview", HOME),
    ("models", f"{HOME}/models"),
    ("settings", f"{HOME}/settings"),
)
PARTS: Final = "/admin/parts"
"""Below it are parts of pages, which modules fetch again to show how things are now."""


@dataclass(frozen=True, slots=True)
class Page:
    """`view` is what the template calls `view`; `section` the entry of the navigation that it belongs to."""

    template: str
    view: object = None
    section: str = ""
    status: int = 200


@dataclass(frozen=True, slots=True)
class Shell:
    """What stands around a page. `here` is its address, to come back to; `language` and `theme` those in use."""

    section: str
    here: str
    language: str
    languages: Sequence[str]
    theme: str
    logged_in: bool
    themes: Sequence[str] = THEMES
    sections: Sequence[tuple[str, str]] = SECTIONS


Show = Callable[[Request], Awaitable[Page]]


class Pages:
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def route(self, router: APIRouter, path: str, show: Show, *, public: bool = False) -> None:
        """Answer GET at `path` with what `show` makes of a request; to anybody if `public`."""

        async def answer(request: Request) -> Response:
            if not public and self._gate.find(request) is None:
                return RedirectResponse(f"{LOGIN}?next={quote(_here(request), safe='')}", 303)
            try:
                return self.answer(request, await show(request))
            except (NotFound, ConfigError) as error:
                return self.answer(request, Page("error/page.html", error, status=error.status))

        router.add_api_route(path, answer, methods=["GET"], include_in_schema=False)

    async def misrouted(self, request: Request, error: Exception) -> Response:
        """A browser that looks for a page below `HOME` gets one that says that it is not there; others hear the same as
        anywhere."""
        assert isinstance(error, HTTPException)
        looks = is_dashboard(request.url.path) and "text/html" in request.headers.get("accept", "")
        if error.status_code != 404 or not looks:
            return await misrouted(request, error)
        return self.answer(
            request, Page("error/page.html", errors.from_http(error, request.scope), status=404)
        )

    def answer(self, request: Request, page: Page) -> Response:
        shell = Shell(
            section=page.section,
            here=_here(request),
            language=language_of(request),
            languages=languages(),
            theme=theme_of(request),
            logged_in=self._gate.find(request) is not None,
        )
        content = render(page.template, shell.language, view=page.view, shell=shell)
        return HTMLResponse(content, page.status, headers={"Content-Language": shell.language})


def language_of(request: Request) -> str:
    chosen, accepted = request.cookies.get(language.COOKIE), request.headers.get("accept-language")
    return language.choose(chosen, accepted, languages())


def theme_of(request: Request) -> str:
    chosen = request.cookies.get(THEME_COOKIE)
    return chosen if chosen in THEMES else THEMES[0]


def local(address: str | None) -> str:
    """An address to go to next: one of our own pages, or the first one. Never another site's."""
    inside = address is not None and (
        address == HOME or address.startswith((f"{HOME}/", f"{HOME}?"))
    )
    return address if address is not None and inside else HOME


def _here(request: Request) -> str:
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path
