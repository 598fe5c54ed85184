"""Logging in and out. A link that works once, then a password; a cookie that no script and no other site can use."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from omlx.errors import BadRequest, Unauthorized
from omlx.server.fields import read

from .credentials import Credentials
from .sessions import COOKIE, Session, Sessions, Throttle

Secret = Annotated[str, Field(max_length=4096)]


class Login(BaseModel):
    """One of the two."""

    model_config = ConfigDict(extra="forbid", strict=True)

    token: Secret | None = None
    password: Secret | None = None


class NewPassword(BaseModel):
    """`current` may be left out by whoever came by a link."""

    model_config = ConfigDict(extra="forbid", strict=True)

    password: Secret
    current: Secret | None = None


class Gate:
    """Who has logged in. `api_key` is the one in use: when it changes, so does every fingerprint."""

    def __init__(
        self,
        credentials: Credentials,
        sessions: Sessions,
        throttle: Throttle,
        api_key: Callable[[], str | None],
    ) -> None:
        self._credentials = credentials
        self._sessions = sessions
        self._throttle = throttle
        self._api_key = api_key

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(
            f"{self._credentials.fingerprint} {self._api_key()!r}".encode()
        ).hexdigest()

    def find(self, request: Request) -> Session | None:
        cookie = request.cookies.get(COOKIE)
        return self._sessions.find(cookie, self.fingerprint) if cookie else None

    def session(self, request: Request) -> Session:
        """Raises Unauthorized unless the request is one of a browser that has logged in."""
        found = self.find(request)
        if found is None:
            raise Unauthorized("auth.session")
        return found

    def renew(self, request: Request, response: Response, *, by_link: bool) -> None:
        """A new session in place of the one that the request has, if any."""
        self._sessions.end(request.cookies.get(COOKIE, ""))
        token = self._sessions.begin(self.fingerprint, by_link=by_link)
        https = request.url.scheme == "https"
        response.set_cookie(COOKIE, token, path="/", httponly=True, samesite="strict", secure=https)

    def end(self, request: Request, response: Response) -> None:
        """The session that the request has, if any, is over."""
        self._sessions.end(request.cookies.get(COOKIE, ""))
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")

    async def admit(self, asked: Login) -> bool:
        """Whether it was by a link. Raises BadRequest, Unauthorized and TooManyAttempts for what lets nobody in."""
        if (asked.token is None) == (asked.password is None):
            raise BadRequest("auth.one_of_two")
        if asked.token is None:
            await self._check(asked.password or "")
        elif not await asyncio.to_thread(self._credentials.redeem, asked.token):
            raise Unauthorized("auth.link")
        return asked.token is not None

    async def set_password(self, session: Session, asked: NewPassword) -> None:
        """All sessions end. Raises Unauthorized, TooManyAttempts, and BadRequest for one that is too short."""
        if self._credentials.has_password and not session.by_link:
            await self._check(asked.current or "")
        await asyncio.to_thread(self._credentials.set_password, asked.password)

    def routes(self) -> APIRouter:
        router = APIRouter(prefix="/admin/api")
        router.add_api_route("/session", self.show, methods=["GET"])
        router.add_api_route("/login", self.log_in, methods=["POST"])
        router.add_api_route("/logout", self.log_out, methods=["POST"])
        router.add_api_route("/password", self.change_password, methods=["PUT"])
        return router

    async def show(self, request: Request) -> Response:
        return self._told(self.find(request) is not None)

    async def log_in(self, request: Request) -> Response:
        by_link = await self.admit(read(Login, await request.body()))
        response = self._told(True)
        self.renew(request, response, by_link=by_link)
        return response

    async def log_out(self, request: Request) -> Response:
        response = self._told(False)
        self.end(request, response)
        return response

    async def change_password(self, request: Request) -> Response:
        """All other sessions end."""
        await self.set_password(self.session(request), read(NewPassword, await request.body()))
        response = self._told(True)
        self.renew(request, response, by_link=False)
        return response

    async def _check(self, password: str) -> None:
        """Raises Unauthorized for a wrong password, and TooManyAttempts for any after too many of those."""
        self._throttle.check()
        self._throttle.failed()  # until proven otherwise: attempts at the same time count one by one
        if not await asyncio.to_thread(self._credentials.is_password, password):
            raise Unauthorized("auth.password")
        self._throttle.succeeded()

    def _told(self, logged_in: bool) -> JSONResponse:
        return JSONResponse(
            {"logged_in": logged_in, "password_set": self._credentials.has_password}
        )
