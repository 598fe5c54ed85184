"""Logging in, and the password: pages for what `login` does. A link's token is used when its button is, not before."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request

from .credentials import LOGIN, LONGEST, SHORTEST, Credentials
from .login import Gate
from .pages import Page, Pages, local

PASSWORD = "/admin/password"


@dataclass(frozen=True, slots=True)
class LoginView:
    """`token` is that of the link, if one was followed; `then` the page to go on to."""

    token: str | None
    password_set: bool
    then: str


@dataclass(frozen=True, slots=True)
class PasswordView:
    """`wants_current`: whoever changes it has to know the one there is."""

    password_set: bool
    wants_current: bool
    then: str
    shortest: int = SHORTEST
    longest: int = LONGEST


class LoginPage:
    def __init__(self, pages: Pages, gate: Gate, credentials: Credentials) -> None:
        self._pages = pages
        self._gate = gate
        self._credentials = credentials

    def routes(self) -> APIRouter:
        router = APIRouter()
        self._pages.route(router, LOGIN, self.show, public=True)
        self._pages.route(router, PASSWORD, self.show_password)
        return router

    async def show(self, request: Request) -> Page:
        query, password_set = request.query_params, self._credentials.has_password
        then = local(query.get("next"))
        return Page("login/page.html", LoginView(query.get("token"), password_set, then))

    async def show_password(self, request: Request) -> Page:
        session, password_set = self._gate.session(request), self._credentials.has_password
        wants_current = password_set and not session.by_link
        return Page(
            "password/page.html", PasswordView(password_set, wants_current, local(request.query_params.get("next")))
        )
