"""Logging in, and the password: plain forms, for what `login` does. A link's token is used when its button is, not
before. What is refused is said in the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from omlx.errors import OmlxError
from omlx.server.fields import read_query

from ..form_data import typed
from ..pages import Page, Pages, local
from .credentials import LOGIN, LONGEST, SHORTEST, Credentials
from .routes import Gate, Login, NewPassword

LOGOUT: Final = "/admin/logout"
PASSWORD: Final = "/admin/password"


@dataclass(frozen=True, slots=True)
class LoginView:
    """`token` is that of the link, if one was followed; `then` the page to go on to; `problem` what was refused."""

    token: str | None
    password_set: bool
    then: str
    problem: OmlxError | None = None


@dataclass(frozen=True, slots=True)
class PasswordView:
    """`wants_current`: whoever changes it has to know the one there is."""

    password_set: bool
    wants_current: bool
    then: str
    problem: OmlxError | None = None
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
        router.add_api_route(LOGIN, self.enter, methods=["POST"], include_in_schema=False)
        router.add_api_route(LOGOUT, self.leave, methods=["POST"], include_in_schema=False)
        router.add_api_route(
            PASSWORD, self.change_password, methods=["POST"], include_in_schema=False
        )
        return router

    async def show(self, request: Request) -> Page:
        query = request.query_params
        return self._login(query.get("token"), local(query.get("next")))

    async def show_password(self, request: Request) -> Page:
        return self._password(request, local(request.query_params.get("next")))

    async def enter(self, request: Request) -> Response:
        """On to the page that was wanted; whoever came by the first link is offered to set a password before."""
        fields = await typed(request)
        then = local(fields.get("next"))
        try:
            by_link = await self._gate.admit(read_query(Login, _only(fields, "token", "password")))
        except OmlxError as error:
            return self._pages.answer(request, self._login(None, then, error))
        goal = then if self._credentials.has_password else f"{PASSWORD}?next={quote(then, safe='')}"
        response = RedirectResponse(goal, 303)
        self._gate.renew(request, response, by_link=by_link)
        return response

    async def leave(self, request: Request) -> Response:
        response = RedirectResponse(LOGIN, 303)
        self._gate.end(request, response)
        return response

    async def change_password(self, request: Request) -> Response:
        fields = await typed(request)
        then = local(fields.get("next"))
        session = self._gate.find(request)
        if session is None:
            return RedirectResponse(LOGIN, 303)
        try:
            await self._gate.set_password(
                session, read_query(NewPassword, _only(fields, "password", "current"))
            )
        except OmlxError as error:
            return self._pages.answer(request, self._password(request, then, error))
        response = RedirectResponse(then, 303)
        self._gate.renew(request, response, by_link=False)
        return response

    def _login(self, token: str | None, then: str, problem: OmlxError | None = None) -> Page:
        view = LoginView(token, self._credentials.has_password, then, problem)
        return Page("login/page.html", view, status=200 if problem is None else problem.status)

    def _password(self, request: Request, then: str, problem: OmlxError | None = None) -> Page:
        password_set, session = self._credentials.has_password, self._gate.session(request)
        view = PasswordView(password_set, password_set and not session.by_link, then, problem)
        return Page("password/page.html", view, status=200 if problem is None else problem.status)


def _only(fields: Mapping[str, str], *names: str) -> Mapping[str, str]:
    return {name: fields[name] for name in names if name in fields}
