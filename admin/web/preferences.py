"""Language and theme of a browser: cookies that a form sets for a year, without scripts.

Without a cookie the language is the best match of the Accept-Language header, else English.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import parse_qs

from fastapi import Request
from pydantic import ConfigDict
from starlette.responses import RedirectResponse, Response

from omlx.catalog import SOURCE, languages
from omlx.errors import BadRequest
from omlx.server.request.fields import Body

from .addresses import HOME, own_page

LANGUAGE_COOKIE: Final = "omlx_language"
THEME_COOKIE: Final = "omlx_theme"
THEMES: Final = ("auto", "light", "dark")
_YEAR_S = 366 * 86400


async def form_data(request: Request) -> dict[str, str]:
    """Return the last value of each field of a urlencoded form, without empty ones."""
    fields = parse_qs((await request.body()).decode("latin-1"))
    return {name: values[-1] for name, values in fields.items()}


class Strict(Body):
    """A body of the API, or a form: every field is known and of its type."""

    model_config = ConfigDict(extra="forbid")


async def store(request: Request) -> Response:
    """Set the cookies of the form fields `language` and `theme`; redirect to the field `next`.

    All fields are optional; without `next` the answer is empty. Raises BadRequest.
    """
    fields = await form_data(request)
    response = Response(status_code=204)
    if "next" in fields:
        response = RedirectResponse(own_page(fields["next"]), 303)
    for name, cookie, choices in (
        ("language", LANGUAGE_COOKIE, languages()),
        ("theme", THEME_COOKIE, THEMES),
    ):
        value = fields.get(name, "")
        if value in choices:
            response.set_cookie(
                cookie, value, max_age=_YEAR_S, path=HOME, samesite="lax", httponly=True
            )
        elif name in fields:
            raise BadRequest("request.value", param=name, field=name, expected=", ".join(choices))
    return response


def language_of(request: Request) -> str:
    cookie, accepted = request.cookies.get(LANGUAGE_COOKIE), request.headers.get("accept-language")
    return choose_language(cookie, accepted, languages())


def theme_of(request: Request) -> str:
    theme = request.cookies.get(THEME_COOKIE)
    return theme if theme in THEMES else THEMES[0]


def choose_language(cookie: str | None, accepted: str | None, available: Collection[str]) -> str:
    """Return an `available` language; `accepted` is a header like `ko-KR,ko;q=0.9,en;q=0.8`.

    Only the primary part of a language tag counts: all variants of Chinese are the same language.
    """
    if cookie is not None and cookie in available:
        return cookie
    weights: dict[str, float] = {}
    for part in (accepted or "").split(","):
        tag, _, options = part.partition(";")
        language = tag.strip().lower().partition("-")[0]
        weights[language] = max(weights.get(language, 0.0), _weight(options))
    matches = [
        language for language, weight in weights.items() if weight > 0 and language in available
    ]
    return max(matches, key=weights.__getitem__, default=SOURCE)


def _weight(options: str) -> float:
    name, _, value = options.strip().partition("=")
    try:
        return float(value) if name.strip() == "q" else 1.0
    except ValueError:
        return 0.0
