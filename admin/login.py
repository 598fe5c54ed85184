"""Login and password, as plain HTML forms and in the API; sessions by a cookie.

Opening a login link leaves it valid until its button is pressed. Refusals are shown in the page.
The cookie is HttpOnly and SameSite=Strict: unavailable to scripts and other sites.
"""

from __future__ import annotations

import asyncio
import hashlib
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request
from pydantic import Field
from starlette.responses import JSONResponse, RedirectResponse, Response

from omlx.errors import BadRequest, ConfigError, OmlxError, Unauthorized
from omlx.machine import PROGRAM, program_words
from omlx.server.http.guard import is_loopback
from omlx.settings.schema import table

from .credentials import COOKIE, MAX_LENGTH, MIN_LENGTH, Credentials, Session, Sessions, Throttle
from .web.addresses import API, HOME, LOGIN, own_page
from .web.pages import WANTED_COOKIE, Page, Pages
from .web.preferences import Strict, form_data

LOGOUT: Final = f"{HOME}/logout"
PASSWORD: Final = f"{HOME}/password"
Secret = Annotated[str, Field(max_length=4096)]


@dataclass(frozen=True, slots=True)
class LoginView:
    """Data of both pages. `then`: page to continue with; `problem`: a refusal.

    `command` prints a login link, `token` is a link's. `wants_current`: a change requires the
    current password.
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

    def register(self) -> APIRouter:
        """Add the pages; return the API of login and logout."""
        self.pages.route(LOGIN, self.show, public=True)
        self.pages.route(PASSWORD, self.show_password)
        self.pages.form(LOGIN, self.log_in)
        self.pages.form(LOGOUT, self.log_out)
        self.pages.form(PASSWORD, self.change_password)
        self.pages.form(f"{PASSWORD}/later", self.decline_password)
        api = APIRouter(prefix=API)
        api.add_api_route("/session", self.api_session, methods=["GET"])
        api.add_api_route("/login", self.api_log_in, methods=["POST"])
        api.add_api_route("/logout", self.api_log_out, methods=["POST"])
        api.add_api_route("/password", self.api_change_password, methods=["PUT"])
        return api

    async def api_session(self, request: Request) -> Response:
        return self._status(self.gate.logged_in(request))

    async def api_log_in(self, request: Request) -> Response:
        by_link = await self.gate.admit(Login.parse(await request.body()))
        response = self._status(True)
        self.gate.renew(request, response, by_link=by_link)
        return response

    async def api_log_out(self, request: Request) -> Response:
        response = self._status(False)
        self.gate.end(request, response)
        return response

    async def api_change_password(self, request: Request) -> Response:
        """Change the password; all other sessions end."""
        session = self.gate.session(request)
        await self.gate.set_password(session, NewPassword.parse(await request.body()))
        response = self._status(True)
        self.gate.renew(request, response, by_link=False)
        return response

    def _status(self, logged_in: bool) -> JSONResponse:
        password_set = self.gate.credentials.has_password
        return JSONResponse({"logged_in": logged_in, "password_set": password_set})

    async def show(self, request: Request) -> Page:
        query = request.query_params
        # A link that a command has printed does not name the page: the browser remembers it.
        wanted = query.get("next") or request.cookies.get(WANTED_COOKIE)
        return self._login(request, own_page(wanted), token=query.get("token"))

    async def show_password(self, request: Request) -> Page:
        return self._password(request, own_page(request.query_params.get("next")))

    async def log_in(self, request: Request) -> Response:
        """Log in, then continue with the field `next`.

        The page for a password comes first, unless a password is set or was declined.
        """
        fields = await form_data(request)
        then = own_page(fields.get("next"))
        try:
            login = Login.of_query(_only(fields, "token", "password"))
            by_link = await self.gate.admit(login)
        except OmlxError as error:
            return self.pages.answer(request, self._login(request, then, error))
        if self.gate.credentials.offers_password:
            then = f"{PASSWORD}?next={quote(then, safe='')}"
        response = RedirectResponse(then, 303)
        response.delete_cookie(WANTED_COOKIE, path=LOGIN)
        self.gate.renew(request, response, by_link=by_link)
        return response

    async def decline_password(self, request: Request) -> Response:
        """Do not offer a password again; continue with the field `next`."""
        then = own_page((await form_data(request)).get("next"))
        if self.gate.logged_in(request):
            await asyncio.to_thread(self.gate.credentials.decline_password)
        return RedirectResponse(then, 303)

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
            new = NewPassword.of_query(_only(fields, "password", "current"))
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


class Login(Strict):
    """Body of a login: either token or password."""

    token: Secret | None = None
    password: Secret | None = None


class NewPassword(Strict):
    """Body of a password change. Sessions begun by a login link need no `current`."""

    password: Secret
    current: Secret | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """Sessions and logins. A change of the password or of `api_key()` ends all sessions."""

    credentials: Credentials
    sessions: Sessions
    throttle: Throttle
    api_key: Callable[[], str | None]

    @property
    def fingerprint(self) -> str:
        secret = f"{self.credentials.fingerprint} {self.api_key()!r}"
        return hashlib.sha256(secret.encode()).hexdigest()

    def find(self, request: Request) -> Session | None:
        cookie = request.cookies.get(COOKIE)
        return self.sessions.find(cookie, self.fingerprint) if cookie else None

    def logged_in(self, request: Request) -> bool:
        return self.find(request) is not None

    def session(self, request: Request) -> Session:
        session = self.find(request)
        if session is None:
            raise Unauthorized("auth.session")
        return session

    def renew(self, request: Request, response: Response, *, by_link: bool) -> None:
        """Replace the request's session, if any, by a new session."""
        with suppress(ConfigError):  # such as a full disk
            self.sessions.end(request.cookies.get(COOKIE, ""))
        token = self.sessions.begin(self.fingerprint, by_link=by_link)
        https = request.url.scheme == "https"
        response.set_cookie(COOKIE, token, path="/", httponly=True, samesite="strict", secure=https)

    def end(self, request: Request, response: Response) -> None:
        self.sessions.end(request.cookies.get(COOKIE, ""))
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")

    def router(self) -> APIRouter:
        """Return an API router whose endpoints answer Unauthorized without a session."""

        async def check(request: Request) -> None:
            self.session(request)

        return APIRouter(prefix=API, dependencies=[Depends(check)])

    async def admit(self, login: Login) -> bool:
        """Check a login; return whether by link.

        Raises BadRequest, Unauthorized, TooManyRequests.
        """
        if (login.token is None) == (login.password is None):
            raise BadRequest("auth.one_of_two")
        if login.token is None:
            await self._check(login.password or "")
        elif not await asyncio.to_thread(self.credentials.redeem, login.token):
            raise Unauthorized("auth.link")
        return login.token is not None

    async def set_password(self, session: Session, new: NewPassword) -> None:
        """Change the password; all sessions end.

        Raises Unauthorized, TooManyRequests, BadRequest.
        """
        if self.credentials.has_password and not session.by_link:
            await self._check(new.current or "")
        await asyncio.to_thread(self.credentials.set_password, new.password)

    async def _check(self, password: str) -> None:
        """Raise Unauthorized for a wrong password, TooManyRequests during the delay."""
        self.throttle.check()
        self.throttle.failed()  # before the slow comparison, so that parallel attempts all count
        if not await asyncio.to_thread(self.credentials.is_password, password):
            raise Unauthorized("auth.password")
        self.throttle.succeeded()


def login_command(home: Path, client: str | None) -> str:
    """Return the dashboard command for a server with `home`.

    Only a `client` address on the server's own machine receives the program's path.
    """
    if client is None or not is_loopback(client):
        return f"{PROGRAM} dashboard"
    words = [*program_words(), "dashboard"]
    if home != table()["home"].default:
        words += ["--home", str(home)]
    return shlex.join(words)
