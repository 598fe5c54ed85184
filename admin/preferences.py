"""Language and theme, as chosen in a page and remembered by the browser for a year. Works without scripts."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from omlx.catalog import languages
from omlx.errors import BadRequest

from . import language
from .form_data import typed
from .pages import THEME_COOKIE, THEMES, local

PREFERENCES: Final = "/admin/preferences"
_YEAR_S = 366 * 86400


def routes() -> APIRouter:
    router = APIRouter()
    router.add_api_route(PREFERENCES, keep, methods=["POST"], include_in_schema=False)
    return router


async def keep(request: Request) -> Response:
    """A form with `language`, `theme` or both, and `next`, the page to come back to, if any. Raises BadRequest."""
    fields = await typed(request)
    response = (
        RedirectResponse(local(fields["next"]), 303)
        if "next" in fields
        else Response(status_code=204)
    )
    for name, cookie, choices in (
        ("language", language.COOKIE, languages()),
        ("theme", THEME_COOKIE, THEMES),
    ):
        if (value := fields.get(name)) is None:
            continue
        if value not in choices:
            raise BadRequest("request.value", param=name, field=name, detail=", ".join(choices))
        response.set_cookie(
            cookie, value, max_age=_YEAR_S, path="/admin", samesite="lax", httponly=True
        )
    return response
