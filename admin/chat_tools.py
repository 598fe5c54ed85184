"""Tools of the chat page: API for lists and calls. The page asks the user before a call."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from omlx.errors import BadRequest
from omlx.server.http.connection import while_connected
from omlx.server.request.fields import read
from omlx.tools.toolbox import Toolbox

from .web.preferences import Strict


class Call(Strict):
    """Call of a tool; `arguments` is a JSON object as text, as the model wrote it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatTools:
    toolbox: Toolbox

    def register(self, api: APIRouter) -> None:
        api.add_api_route("/chat/tools/{server}", self._list, methods=["GET"])
        api.add_api_route("/chat/tools", self._call, methods=["POST"])

    async def _list(self, request: Request, server: str) -> Response:
        """Return the tools of a server, as the Responses API declares them. Starts the server."""
        await request.body()
        tools = await while_connected(request.receive, self.toolbox.tools(server))
        declared = [
            {
                "type": "function",
                "name": tool.full_name,
                "description": tool.description,
                "parameters": tool.schema,
            }
            for tool in tools
        ]
        return JSONResponse({"tools": declared})

    async def _call(self, request: Request) -> Response:
        """Call a tool; the result is a text for the model. Ends with the client."""
        call = read(Call, await request.body())
        called = self.toolbox.call(call.name, _arguments(call.arguments))
        result = await while_connected(request.receive, called)
        return JSONResponse({"text": result.text, "failed": result.failed})


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise BadRequest("toolbox.arguments", param="arguments") from error
    if not isinstance(arguments, dict):
        raise BadRequest("toolbox.arguments", param="arguments")
    return arguments
