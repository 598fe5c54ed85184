"""Tool loop: calls of MCP servers and web search run between the generations of an answer.

    generation ─► calls ─► Toolbox ─► results in the next prompt ─► generation ─► … ─► Finish

A single loop for every dialect. Adds `ToolsListed` and `ToolReturned` to the events, joins the
finishes, and leaves calls of the client's own functions, and calls to approve, to the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from omlx.engine.types import FinishReason
from omlx.errors import Conflict, OmlxError, TimedOut
from omlx.records import joined
from omlx.server.http.guard import Caller
from omlx.server.request import tooling
from omlx.server.request.generation import GenerationService
from omlx.server.request.generation_request import GenerationRequest
from omlx.server.request.opening import Recorded
from omlx.server.request.stream import ChoiceEvent, GenerationStream
from omlx.server.tool_runner import ToolRunner
from omlx.settings.schema import Settings
from omlx.text.events import (
    Finish,
    OutputEvent,
    ToolCallEnd,
    ToolReturned,
    ToolsListed,
)
from omlx.text.tools import ToolUse
from omlx.tools.tool import OfferedTool, Tool, ToolResult
from omlx.tools.toolbox import Toolbox

MAX_CALLS: Final = 64
"""Calls of an answer — after them the model must answer without tools."""
NO_CALLS: Final = "The limit of calls in this answer is reached."


class ToolLoops:
    """Opens streams of answers; those with tools of the server go through a loop."""

    def __init__(
        self, generations: GenerationService, toolbox: Toolbox, settings: Callable[[], Settings]
    ) -> None:
        self._generations = generations
        self._tools = ToolRunner(generations, toolbox, settings)

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

        Lists the tools and makes approved calls first. Raises OmlxError, also after the request's
        `timeout_s`, which counts from here on to the end of the answer.
        """
        seconds, clock = request.timeout_s, asyncio.get_running_loop().time
        begun_at = clock()
        try:
            async with asyncio.timeout(seconds) as limit:
                stream = await self._open(request, id_prefix, caller or Caller(), kept, recorded)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TimedOut("request.timeout", seconds=seconds) from error
        if seconds is not None:
            left_s = begun_at + seconds - clock()
            stream.stop_after(left_s, TimedOut("request.timeout", seconds=seconds))
        return stream

    async def _open(
        self,
        request: GenerationRequest,
        id_prefix: str,
        caller: Caller,
        kept: bool,
        recorded: Recorded | None,
    ) -> GenerationStream:
        named = self._generations.with_fallback(request)
        request, tools = await self._tools.prepare(named, caller)
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
        request, begun = await self._tools.make_approved(request, tools)
        stream = await self._generations.open(request, id_prefix, caller)
        request = replace(request, model=stream.model)  # whose tokenizer counts results
        stream.tool_loop = ToolLoop(stream, request, tools, begun, self._tools, follow)
        return stream

    async def prompt_ids(self, request: GenerationRequest, caller: Caller) -> list[int]:
        """Return the ids of a conversation's prompt, with the tools of the server."""
        request, _ = await self._tools.prepare(request, caller)
        return await self._generations.prompt_ids(request)


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
        runner: ToolRunner,
        follow: Callable[[GenerationRequest], Coroutine[Any, Any, GenerationStream]],
    ) -> None:
        wanted = request.server_tools
        assert wanted is not None
        self.tools = tools
        self._first = first
        self._request = replace(request, seed=first.seed, timeout_s=None, warnings=())
        self._begun = begun
        self._runner = runner
        self._follow = follow
        self._calls_left = min(
            MAX_CALLS, MAX_CALLS if wanted.max_calls is None else wanted.max_calls
        )
        self._calls_left -= sum(isinstance(event, ToolReturned) for event in begun)
        self._left_of: dict[str, int] = {}
        for each in wanted.sets:
            if (most := each.max_calls) is not None:
                self._left_of[each.server] = min(most, self._left_of.get(each.server, most))
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
        continues = True
        while continues:
            turn = _Turn()
            async for batch in self._current.own_batches(idle_s):
                async for passed in self._pass(batch, turn, idle_s):
                    yield passed
            self._finishes.append(turn.finish)
            continues = self._continues(turn)
            if continues:
                self._leave(turn)
                async for _ in self._wait(self._open_next(), idle_s):
                    yield []
                continues = not self._closed
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
        known, length = self.tools[call.name], self._current.served.context_length
        result = ToolResult(NO_CALLS, failed=True, refused=True)
        if self._may_call(known.tool):
            arguments = tooling.parse_arguments(text)
            result = await self._runner.run(known, arguments, self._with(turn), length)
        self._calls_left -= 1
        if (server := known.tool.server) in self._left_of:
            self._left_of[server] -= 1
        turn.returned[index] = ToolReturned(index, call.id, result)

    def _may_call(self, tool: Tool) -> bool:
        return self._calls_left > 0 and self._left_of.get(tool.server, 1) > 0

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

    def _continues(self, turn: _Turn) -> bool:
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
        self._request = replace(
            self._with(turn),
            continue_last=False,
            max_tokens=self._tokens_left,
            tools=self._tools_left(self._request.tools),
        )

    def _with(self, turn: _Turn) -> GenerationRequest:
        """Return the request with the message of a generation, and the results known."""
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
        messages = tooling.with_names([*map(dict, before), message, *results])
        return replace(request, messages=messages, continue_last=False)

    def _tools_left(self, tools: ToolUse | None) -> ToolUse | None:
        """Return the next generation's tools; a choice of the client ends with the first call."""
        every = () if tools is None else tools.functions
        ended = {name for name, known in self.tools.items() if not self._may_call(known.tool)}
        left = tuple(each for each in every if each["function"]["name"] not in ended)
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
        self.answer = tooling.AnswerMessage()
        self.returned: dict[int, ToolReturned] = {}
        self.finish: Finish
