"""Pages of the login and the password: plain HTML forms. A refusal is shown in the page.

Opening a login link does not use it up; its button does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from omlx.errors import OmlxError
from omlx.server.fields import read_query

from ..addresses import HOME, LOGIN, own_page
from ..form_data import form_data
from ..pages import Page, Pages
from .command import login_command
from .credentials import MAX_LENGTH, MIN_LENGTH
from .gate import Gate, Login, NewPassword

LOGOUT: Final = f"{HOME}/logout"
PASSWORD: Final = f"{HOME}/password"


@dataclass(frozen=True, slots=True)
class LoginView:
    """Data of both pages. `then` is the page to continue with, `problem` a refusal.

    `command` prints a login link, `token` is that of one; `wants_current`: the current password is
    needed to change it.
    """

    password_set: bool
    then: str
    problem: OmlxError | None
    command: str = ""
    token: str | None = None
    wants_current: bool = False
    shortest: int = MIN_LENGTH
    longest: int = MAX_LENGTH


@dataclass(frozen=True, slots=True)
class LoginPage:
    pages: Pages
    gate: Gate

    def register(self) -> None:
        self.pages.route(LOGIN, self.show, public=True)
        self.pages.route(PASSWORD, self.show_password)
        self.pages.form(LOGIN, self.log_in)
        self.pages.form(LOGOUT, self.log_out)
        self.pages.form(PASSWORD, self.change_password)

    async def show(self, request: Request) -> Page:
        query = request.query_params
        return self._login(request, own_page(query.get("next")), token=query.get("token"))

    async def show_password(self, request: Request) -> Page:
        return self._password(request, own_page(request.query_params.get("next")))

    async def log_in(self, request: Request) -> Response:
        """Continue with the field `next`, after a first link with the page that sets a password."""
        fields = await form_data(request)
        then = own_page(fields.get("next"))
        try:
            login = read_query(Login, _only(fields, "token", "password"))
            by_link = await self.gate.admit(login)
        except OmlxError as error:
            return self.pages.answer(request, self._login(request, then, error))
        if not self.gate.credentials.has_password:
            then = f"{PASSWORD}?next={quote(then, safe='')}"
        response = RedirectResponse(then, 303)
        self.gate.renew(request, response, by_link=by_link)
        return response

    async def log_out(self, request: Request) -> Response:
        response = RedirectResponse(LOGIN, 303)
        self.gate.end(request, response)
        return response

    async def change_password(self, request: Request) -> Response:
        fields = await form_data(request)
        then = own_page(fields.get("next"))
        session = self.gate.find(request)
        if session is None:
            return RedirectResponse(LOGIN, 303)
        try:
            new = read_query(NewPassword, _only(fields, "password", "current"))
            await self.gate.set_password(session, new)
        except OmlxError as error:
            return self.pages.answer(request, self._password(request, then, error))
        response = RedirectResponse(then, 303)
        self.gate.renew(request, response, by_link=False)
        return response

    def _login(
        self,
        request: Request,
        then: str,
        problem: OmlxError | None = None,
        token: str | None = None,
    ) -> Page:
        credentials = self.gate.credentials
        command = login_command(credentials.home, request.client and request.client.host)
        view = LoginView(credentials.has_password, then, problem, command, token)
        return Page("login/page.html", view, status=_status(problem))

    def _password(self, request: Request, then: str, problem: OmlxError | None = None) -> Page:
        password_set, session = self.gate.credentials.has_password, self.gate.session(request)
        wants_current = password_set and not session.by_link
        view = LoginView(password_set, then, problem, wants_current=wants_current)
        return Page("login/password_page.html", view, status=_status(problem))


def _status(problem: OmlxError | None) -> int:
    return 200 if problem is None else problem.status


def _only(fields: Mapping[str, str], *names: str) -> Mapping[str, str]:
    return {name: fields[name] for name in names if name in fields}
