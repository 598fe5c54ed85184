"""API of logging in and out."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from omlx.server.fields import read

from ..addresses import API
from .gate import Gate, Login, NewPassword


@dataclass(frozen=True, slots=True)
class LoginApi:
    gate: Gate

    def routes(self) -> APIRouter:
        router = APIRouter(prefix=API)
        router.add_api_route("/session", self.show, methods=["GET"])
        router.add_api_route("/login", self.log_in, methods=["POST"])
        router.add_api_route("/logout", self.log_out, methods=["POST"])
        router.add_api_route("/password", self.change_password, methods=["PUT"])
        return router

    async def show(self, request: Request) -> Response:
        return self._status(self.gate.logged_in(request))

    async def log_in(self, request: Request) -> Response:
        by_link = await self.gate.admit(read(Login, await request.body()))
        response = self._status(True)
        self.gate.renew(request, response, by_link=by_link)
        return response

    async def log_out(self, request: Request) -> Response:
        response = self._status(False)
        self.gate.end(request, response)
        return response

    async def change_password(self, request: Request) -> Response:
        """Change the password; all other sessions end."""
        session = self.gate.session(request)
        await self.gate.set_password(session, read(NewPassword, await request.body()))
        response = self._status(True)
        self.gate.renew(request, response, by_link=False)
        return response

    def _status(self, logged_in: bool) -> JSONResponse:
        password_set = self.gate.credentials.has_password
        return JSONResponse({"logged_in": logged_in, "password_set": password_set})
