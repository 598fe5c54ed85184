"""Tool loop: calls of MCP servers and web search run between the generations of an answer.

    generation ─► calls ─► Toolbox ─► results in the next prompt ─► generation ─► … ─► Finish

A single loop for every dialect. Adds `ToolsListed` and `ToolReturned` to the events, joins the
finishes, and leaves calls of the client's own functions, and calls to approve, to the client.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from omlx.engine.types import FinishReason
from omlx.errors import BadRequest, Conflict, Forbidden, OmlxError, Reason
from omlx.records import joined
from omlx.server.beginnings.next_turn import AnswerMessage
from omlx.server.http.guard import DASHBOARD, MAIN_KEY, Caller
from omlx.server.request import tooling
from omlx.server.request.generation import GenerationService
from omlx.server.request.generation_request import GenerationRequest
from omlx.server.request.recorded import Recorded
from omlx.server.request.stream import ChoiceEvent, GenerationStream
from omlx.settings.schema import Settings
from omlx.text.events import (
    Finish,
    OutputEvent,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolReturned,
    ToolsListed,
)
from omlx.text.tools import ToolUse
from omlx.tools.tool import OfferedTool, Tool, ToolResult, Toolset
from omlx.tools.toolbox import Toolbox
from omlx.tools.web import NAME as WEB

MAX_CALLS: Final = 64
"""Calls of an answer — after them the model must answer without tools."""
NO_CALLS: Final = "The limit of calls in this answer is reached."
NO_ARGUMENTS: Final = "The arguments are not a JSON object."


class ToolLoops:
    """Opens streams of answers; those with tools of the server go through a loop."""

    def __init__(
        self, generations: GenerationService, toolbox: Toolbox, settings: Callable[[], Settings]
    ) -> None:
        self._generations = generations
        self._toolbox = toolbox
        self._settings = settings

    async def open(
        self,
        request: GenerationRequest,
        id_prefix: str,
        caller: Caller | None = None,
        *,
        kept: bool = False,
        recorded: Recorded | None = None,
    ) -> GenerationStream:
        """Start an answer, or continue the `recorded` answer, as `GenerationService.open` does.

        Lists the tools and makes approved calls first. Raises OmlxError.
        """
        caller = caller or Caller()
        request, tools = await self._prepare(request, caller)
        if not tools:
            return await self._generations.open(
                request, id_prefix, caller, kept=kept, recorded=recorded
            )

        async def follow(following: GenerationRequest) -> GenerationStream:
            return await self._generations.open(following, id_prefix, caller)

        if recorded is not None:  # a setting has changed since: tools are not run twice
            raise Conflict("answer.changed", id=recorded.id)
        if request.server_tools and request.server_tools.approved:
            await self._generations.prompt_ids(request)  # refused before a call, not behind
        request, begun = await self._make_approved(request, tools)
        stream = await self._generations.open(request, id_prefix, caller)
        stream.loop = ToolLoop(stream, request, tools, begun, self._toolbox, follow)
        return stream

    async def prompt_ids(self, request: GenerationRequest, caller: Caller) -> list[int]:
        """Return the ids of a conversation's prompt, with the tools of the server."""
        request, _ = await self._prepare(request, caller)
        return await self._generations.prompt_ids(request)

    async def _prepare(
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
        names = self._toolbox.names
        for each in wanted.sets:
            refused = self._refusal(each.field, caller)
            if each.server == WEB and (refused is not None or WEB not in names):
                place = Reason("tools.skipped.search", {"field": each.field, "type": each.kind})
                warnings.append(place)
                continue
            if refused is not None:
                raise refused
            server = WEB if each.server == WEB else self._server(each)
            for tool in await self._toolbox.tools(server):
                if each.allows(tool):
                    tools[tool.full_name] = OfferedTool(tool, each.asks(tool))
        functions = [
            tooling.function(name, known.tool.description, known.tool.schema)
            for name, known in tools.items()
        ]
        warned = (*warnings, *request.warnings)
        return replace(request, tools=wanted.choose(functions), warnings=warned), tools

    def _refusal(self, field: str, caller: Caller) -> Forbidden | None:
        """Return the error for a request without the right to tools."""
        allowed = self._settings().api_tools
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
        declared, label, address = self._toolbox.servers, wanted.server, wanted.address
        if address is None and label in declared:
            return label
        for name in (label, *declared):
            if address is not None and declared.get(name) == address:
                return name
        at = {"param": wanted.field, "field": wanted.field}
        if address is not None:
            raise BadRequest("toolbox.address", label=label, url=address, **at)
        known = ", ".join(declared) or "—"
        raise BadRequest("toolbox.no_label", server=label, known=known, **at)

    async def _make_approved(
        self, request: GenerationRequest, tools: Mapping[str, OfferedTool]
    ) -> tuple[GenerationRequest, list[OutputEvent]]:
        """Make the approved calls; return the request with results, and events."""
        approved = () if request.server_tools is None else request.server_tools.approved
        events: list[OutputEvent] = []
        texts: dict[str, str] = {}
        for message in request.messages:
            for call in message.get("tool_calls", ()):
                if call["id"] not in approved:
                    continue
                name, arguments = call["function"]["name"], call["function"]["arguments"]
                if name not in tools:
                    raise BadRequest("tools.not_there", param="tools", name=name)
                result = await run(self._toolbox, name, arguments)
                texts[call["id"]] = result.text
                events += [
                    ToolCallStart(0, call["id"], name),
                    ToolCallArguments(0, json.dumps(arguments, ensure_ascii=False)),
                    ToolCallEnd(0),
                    ToolReturned(0, call["id"], result),
                ]
        messages = [
            {**message, "content": texts.get(message.get("tool_call_id", ""), message["content"])}
            for message in request.messages
        ]
        return replace(request, messages=messages), events


async def run(toolbox: Toolbox, name: str, arguments: object) -> ToolResult:
    """Call a tool. A failing server is a result, too, for the model."""
    if not isinstance(arguments, dict):
        return ToolResult(NO_ARGUMENTS, failed=True)
    try:
        return await toolbox.call(name, arguments)
    except OmlxError as error:
        return ToolResult(error.message, failed=True)


class ToolLoop:
    """Generations of an answer. `batches` yields the events once; `close` is final.

    `first`: the stream of the answer, with the id; `request`: the request of `first`. `begun`:
    events of calls made before. `follow` opens the next generation.
    """

    def __init__(
        self,
        first: GenerationStream,
        request: GenerationRequest,
        tools: Mapping[str, OfferedTool],
        begun: Sequence[OutputEvent],
        toolbox: Toolbox,
        follow: Callable[[GenerationRequest], Coroutine[Any, Any, GenerationStream]],
    ) -> None:
        wanted = request.server_tools
        self.tools = tools
        self._first = first
        self._request = replace(request, seed=first.seed, timeout_s=None, warnings=())
        self._begun = begun
        self._toolbox = toolbox
        self._follow = follow
        self._calls_left = MAX_CALLS
        if wanted is not None and wanted.max_calls is not None:
            self._calls_left = min(MAX_CALLS, wanted.max_calls)
        self._limit = request.max_tokens
        self._finishes: list[Finish] = []
        self._current = first
        self._task: asyncio.Task[Any] | None = None
        self._error: OmlxError | None = None
        self._closed = self._over = False

    async def batches(self, idle_s: float | None) -> AsyncGenerator[list[ChoiceEvent], None]:
        """Yield the events of all generations and calls; an empty batch after `idle_s` without.

        Raises the error behind the end of the answer.
        """
        yield [ChoiceEvent(0, event) for event in (*self._listed(), *self._begun)]
        goes_on = True
        while goes_on:
            turn = _Turn()
            async for batch in self._current.own_batches(idle_s):
                async for passed in self._pass(batch, turn, idle_s):
                    yield passed
            self._finishes.append(turn.finish)
            goes_on = self._goes_on(turn)
            if goes_on:
                self._leave(turn)
                async for _ in self._wait(self._open_next(), idle_s):
                    yield []
                goes_on = not self._closed
        self._over = True
        self._first.finishes[0] = finish = self._joined(turn)
        yield [ChoiceEvent(0, finish)]

    def stop(self, error: OmlxError) -> bool:
        """End the answer with an error. Return False after the end."""
        self._error = error
        if self._task is not None:
            self._task.cancel()
        if self._current is not self._first:
            self._current.stop(error)
        return not self._over

    def close(self) -> None:
        """Cancel a running call, or a generation behind the first."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        if self._current is not self._first:
            self._current.close()

    def _listed(self) -> list[ToolsListed]:
        servers: dict[str, list[Tool]] = {}
        for known in self.tools.values():
            servers.setdefault(known.tool.server, []).append(known.tool)
        return [ToolsListed(server, tuple(tools)) for server, tools in servers.items()]

    async def _pass(
        self, batch: Sequence[ChoiceEvent], turn: _Turn, idle_s: float | None
    ) -> AsyncGenerator[list[ChoiceEvent], None]:
        """Yield a batch without `Finish`, each call followed by the result."""
        passed: list[ChoiceEvent] = []
        for each in batch:
            turn.answer.add(each.event)
            if isinstance(each.event, Finish):
                turn.finish = each.event
                continue
            passed.append(each)
            if isinstance(each.event, ToolCallEnd) and self._runs(each.event, turn):
                yield passed
                passed = []
                async for _ in self._wait(self._run(each.event.index, turn), idle_s):
                    yield []
                if (returned := turn.returned.get(each.event.index)) is not None:
                    passed.append(ChoiceEvent(0, returned))
        if passed or not batch:
            yield passed

    def _runs(self, end: ToolCallEnd, turn: _Turn) -> bool:
        known = self.tools.get(turn.answer.calls[end.index].name)
        return known is not None and not known.asks and end.complete and not self._closed

    async def _run(self, index: int, turn: _Turn) -> None:
        call, text = turn.answer.calls[index], "".join(turn.answer.arguments[index])
        result = ToolResult(NO_CALLS, failed=True)
        if self._calls_left > 0:
            result = await run(self._toolbox, call.name, tooling.parse_arguments(text))
        self._calls_left -= 1
        turn.returned[index] = ToolReturned(index, call.id, result)

    async def _wait(
        self, work: Coroutine[Any, Any, None], idle_s: float | None
    ) -> AsyncGenerator[None, None]:
        """Yield after each `idle_s` until `work` has ended, or was cancelled by `close`.

        Raises the error of `work` or of `stop`.
        """
        task = self._task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait((task,), timeout=idle_s))[0]:
                yield
        finally:
            self._task = None
            task.cancel()
        if self._error is not None:
            raise self._error
        if not task.cancelled():
            task.result()

    def _goes_on(self, turn: _Turn) -> bool:
        """Return whether all calls have results, and tokens are left."""
        if self._error is not None:
            raise self._error
        settled = bool(turn.returned) and len(turn.returned) == len(turn.answer.calls)
        ended = turn.finish.reason is not FinishReason.STOP or turn.finish.stop is not None
        return settled and not ended and not self._closed and self._tokens_left != 0

    @property
    def _tokens_left(self) -> int | None:
        """Tokens left for further generations; None without a limit."""
        if self._limit is None:
            return None
        return max(0, self._limit - sum(finish.stats.predicted_n for finish in self._finishes))

    def _leave(self, turn: _Turn) -> None:
        """End a generation, and make the next request."""
        self._current.completed = None  # the next turn is computed at once, not ahead
        if self._current is not self._first:
            self._current.close()
        self._first.hand_back()
        request = self._request
        before = list(request.messages)
        message = turn.answer.message(request.call_id)
        if request.continue_last:
            message["content"] = before.pop()["content"] + message["content"]
        if reasoning := "".join(turn.answer.reasoning):
            message["reasoning_content"] = reasoning
        results = [
            {"role": "tool", "tool_call_id": request.call_id(each.id), "content": each.result.text}
            for _, each in sorted(turn.returned.items())
        ]
        self._request = replace(
            request,
            messages=tooling.with_names([*map(dict, before), message, *results]),
            continue_last=False,
            max_tokens=self._tokens_left,
            tools=self._tools_left(request.tools),
        )

    def _tools_left(self, tools: ToolUse | None) -> ToolUse | None:
        """Return the next generation's tools; a choice of the client ends with the first call."""
        left = () if tools is None else tools.functions
        if self._calls_left <= 0:
            left = tuple(each for each in left if each["function"]["name"] not in self.tools)
        return replace(tools, functions=left, forced=False, name=None) if tools and left else None

    async def _open_next(self) -> None:
        self._current = await self._follow(self._request)
        if self._closed:
            self._current.close()

    def _joined(self, turn: _Turn) -> Finish:
        """Join the finishes of all generations: tokens and times add up."""
        stats = [finish.stats for finish in self._finishes]
        open_calls = len(turn.answer.calls) - len(turn.returned)
        reason = turn.finish.reason
        if self._closed:
            reason = FinishReason.CANCELLED
        elif turn.returned and not open_calls and self._tokens_left == 0:
            reason = FinishReason.LENGTH
        return replace(
            turn.finish,
            reason=reason,
            stats=joined(stats),
            reasoning_tokens=sum(finish.reasoning_tokens for finish in self._finishes),
            tool_calls=open_calls,
        )


class _Turn:
    """Generation: message, and results of calls by index."""

    def __init__(self) -> None:
        self.answer = AnswerMessage()
        self.returned: dict[int, ToolReturned] = {}
        self.finish: Finish
