"""Tools of the server in requests: listed, checked against the settings, and called."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from omlx.errors import BadRequest, Forbidden, OmlxError, Reason
from omlx.server.http.guard import DASHBOARD, MAIN_KEY, Caller
from omlx.server.request import tooling
from omlx.server.request.generation import GenerationService
from omlx.server.request.generation_request import GenerationRequest
from omlx.settings.schema import Settings
from omlx.text.events import (
    OutputEvent,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolReturned,
)
from omlx.text.template.render import Message
from omlx.tools.tool import MCP, WEB, OfferedTool, ToolResult, Toolset
from omlx.tools.toolbox import Toolbox

ANSWER_SHARE: Final = 4
"""One in `ANSWER_SHARE` tokens of the context is kept from results, for the answer to them."""
MIN_RESULT: Final = 100
"""Characters — a shorter part of a result says nothing."""
NO_ROOM: Final = "The result is too long: {tokens} tokens, and the context has {room} left."
NO_ARGUMENTS: Final = "The arguments are not a JSON object."


@dataclass(frozen=True, slots=True)
class ToolRunner:
    """Lists and calls the tools of requests. Results are shortened to the room in the context."""

    generations: GenerationService
    toolbox: Toolbox
    settings: Callable[[], Settings]

    async def prepare(
        self, request: GenerationRequest, caller: Caller
    ) -> tuple[GenerationRequest, dict[str, OfferedTool]]:
        """Return the request with the servers' functions, and the tools by full name.

        Raises Forbidden, BadRequest, ToolFailed.
        """
        wanted = request.server_tools
        if wanted is None:
            return request, {}
        tools: dict[str, OfferedTool] = {}
        warnings: list[Reason] = []
        names = self.toolbox.names
        for each in wanted.sets:
            refused = self._refusal(each.field, caller)
            search = each.kind != MCP
            if search and (refused is not None or WEB not in names):
                place = Reason("tools.skipped.search", {"field": each.field, "type": each.kind})
                warnings.append(place)
                continue
            if refused is not None:
                raise refused
            server = WEB if search else self._server(each)
            for tool in await self.toolbox.tools(server):
                if each.allows(tool):
                    labelled = replace(tool, server=each.server)
                    known = OfferedTool(labelled, tool.full_name, each.asks(tool))
                    tools[labelled.full_name] = known
        functions = [
            tooling.function(name, known.tool.description, known.tool.schema)
            for name, known in tools.items()
        ]
        warned = (*warnings, *request.warnings)
        return replace(request, tools=wanted.choose(functions), warnings=warned), tools

    def _refusal(self, field: str, caller: Caller) -> Forbidden | None:
        """Return the error for a request without the right to tools."""
        allowed = self.settings().api_tools
        if allowed == "off":
            return Forbidden("toolbox.api_off", param=field, field=field)
        if allowed == "own" and caller.key not in ("", MAIN_KEY, DASHBOARD):
            return Forbidden("toolbox.api_key", param=field, field=field)
        return None

    def _server(self, wanted: Toolset) -> str:
        """Return the name of a server in the settings.

        Addresses beside those of the settings are refused: a request could reach any program of
        this machine and its networks. Raises BadRequest.
        """
        declared, label, address = self.toolbox.servers, wanted.server, wanted.address
        if address is None and label in declared:
            return label
        for name in (label, *declared):
            if label != WEB and address is not None and declared.get(name) == address:
                return name
        at = {"param": wanted.field, "field": wanted.field}
        if address is not None:
            raise BadRequest("toolbox.address", label=label, url=address, **at)
        known = ", ".join(declared) or "—"
        raise BadRequest("toolbox.no_label", server=label, known=known, **at)

    async def make_approved(
        self, request: GenerationRequest, tools: Mapping[str, OfferedTool]
    ) -> tuple[GenerationRequest, list[OutputEvent]]:
        """Make the approved calls; return the request with results, and events."""
        approved = () if request.server_tools is None else request.server_tools.approved
        length = await self.generations.context_length(request) if approved else 0
        events: list[OutputEvent] = []
        texts: dict[str, str] = {}
        for message in request.messages:
            for call in message.get("tool_calls", ()):
                if call["id"] not in approved:
                    continue
                name, arguments = call["function"]["name"], call["function"]["arguments"]
                if name not in tools:
                    raise BadRequest("tools.not_there", param="tools", name=name)
                done = replace(request, messages=_with_results(request.messages, texts))
                result = await self.run(tools[name], arguments, done, length)
                texts[call["id"]] = result.text
                events += [
                    ToolCallStart(0, call["id"], name),
                    ToolCallArguments(0, json.dumps(arguments, ensure_ascii=False)),
                    ToolCallEnd(0),
                    ToolReturned(0, call["id"], result),
                ]
        return replace(request, messages=_with_results(request.messages, texts)), events

    async def run(
        self, known: OfferedTool, arguments: object, request: GenerationRequest, length: int
    ) -> ToolResult:
        """Call a tool; the result follows the messages of `request` in a context of `length`.

        A failing server is a result, too, for the model.
        """
        if not isinstance(arguments, dict):
            return ToolResult(NO_ARGUMENTS, failed=True)
        try:
            result = await self.toolbox.call(known.called, arguments)
        except OmlxError as error:
            return ToolResult(error.message, failed=True)
        return await self._fitting(result, request, length)

    async def _fitting(
        self, result: ToolResult, request: GenerationRequest, length: int
    ) -> ToolResult:
        """Shorten a result to the room in a context of `length` tokens, less an answer's."""
        whole, generations = result, self.generations
        if request.truncates:  # the last turn alone has to fit
            roles = [message["role"] for message in request.messages]
            last = len(roles) - 1 - roles[::-1].index("user") if "user" in roles else 0
            request = replace(request, messages=request.messages[last:])
        left = max(0, length - len(await generations.prompt_ids(request)))
        room = max(0, left - length // ANSWER_SHARE)
        if len(result.text) < MIN_RESULT:
            room = left  # the call was made: a short result does not fail for an answer's share
        while True:
            count = generations.tokenize(request.model, result.text, special=False, param="tools")
            tokens = len(await count)
            if tokens <= room:
                return result
            characters = len(result.text) * room // tokens * 9 // 10
            if characters < MIN_RESULT:
                return ToolResult(NO_ROOM.format(tokens=tokens, room=room), failed=True)
            result = whole.cut(characters)


def _with_results(messages: Sequence[Message], texts: Mapping[str, str]) -> list[Message]:
    """Return messages with the texts of results by the ids of calls."""
    return [
        {**message, "content": texts.get(message.get("tool_call_id", ""), message["content"])}
        for message in messages
    ]
