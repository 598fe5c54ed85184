"""The running choices of one request: n rows of the engine, one stream of events.

Events cross from the engine thread through one `EventDispatcher`. A stream that is closed early
cancels its running rows; its lease on the model ends with the last of them, not with the
client.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

from omlx.engine.thread import EngineThread
from omlx.engine.types import (
    Event,
    Failed,
    Finished,
    PrefillProgress,
    PromptForecast,
    Request,
    TokensCommitted,
)
from omlx.errors import OmlxError, Reason
from omlx.models.pool.served import Lease, ServedModel
from omlx.receipts.kept import Recorder
from omlx.server.http.guard import Arrival, Caller
from omlx.server.request.activity import Activity, AnswerText
from omlx.server.request.engine_requests import ChoiceRequest
from omlx.server.request.opening import Recorded, merge_tokens
from omlx.server.request.usage import MIN_TOKENS, Progress, headers
from omlx.text.events import Finish, OutputEvent, PromptLogprobs
from omlx.text.output import OutputParser
from omlx.tools.tool import OfferedTool

DELIVERY_INTERVAL_S: Final = 0.033
"""Between two deliveries, for each open stream: streams share the event loop.

Text at 30 updates a second is fluent.
"""

MAX_DELIVERY_INTERVAL_S: Final = 0.066

PROGRESS_S: Final = 1.0
"""Seconds between two reports on an unread prompt."""


class EventDispatcher:
    """Sink on the engine thread, delivers in bundles on `loop`, by default the first stream's."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._handlers: dict[str, Callable[[Event], None]] = {}
        self._queue: deque[Event] = deque()
        self._scheduled = False  # a delivery will look at the queue
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, events: Sequence[Event], /) -> None:
        """Queue events. On the engine thread; does not block."""
        self._queue.extend(events)
        if self._scheduled and not any(isinstance(event, Finished | Failed) for event in events):
            return
        self._scheduled = True
        assert self._loop is not None, "a stream is open"
        with suppress(RuntimeError):  # the event loop is closed: no stream is left
            self._loop.call_soon_threadsafe(self._deliver)

    def open(self, request_id: str, handler: Callable[[Event], None]) -> None:
        """Deliver the events of a request to `handler`. On the event loop."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._handlers[request_id] = handler

    def forget(self, request_id: str) -> None:
        self._handlers.pop(request_id, None)

    def _deliver(self) -> None:
        """Deliver the whole queue, and schedule the next delivery unless it was empty.

        While a delivery is scheduled, steps do not wake the event loop.
        """
        # Before the queue is read: later events schedule a delivery themselves.
        self._scheduled = False
        if self._timer is not None:
            self._timer.cancel()
        if not self._queue:
            return
        while self._queue:
            event = self._queue.popleft()
            if (handler := self._handlers.get(event.request_id)) is not None:
                handler(event)
        self._scheduled = True
        interval_s = min(DELIVERY_INTERVAL_S * max(1, len(self._handlers)), MAX_DELIVERY_INTERVAL_S)
        assert self._loop is not None
        self._timer = self._loop.call_later(interval_s, self._deliver)


log = logging.getLogger("omlx.server")


@dataclass(frozen=True, slots=True)
class ChoiceEvent:
    choice: int
    event: OutputEvent


class Continuation(Protocol):
    """Calls of server tools, and the generations behind them."""

    @property
    def tools(self) -> Mapping[str, OfferedTool]: ...

    def batches(self, idle_s: float | None) -> AsyncGenerator[list[ChoiceEvent], None]:
        """Yield the events of the whole answer, as `GenerationStream.batches` does."""

    def stop(self, error: OmlxError) -> bool:
        """End all with an error. Return False after the end."""

    def close(self) -> None:
        """Cancel calls, and generations behind the first."""


class GenerationStream:
    """Stream of an answer: `batches` yields its events, once; `close` is final, at any time.

    `model`: id of the model, or of the requested profile. `finishes` fills as choices end.
    `prompt_n`: tokens of the newest prompt; `first_tokens`: first id of each prompt. `seed`:
    requested or drawn. `warnings`: parts of the request left undone. `load_ms`: wait for the model.
    `activity` observes every event, also of a client that has gone; `arrival` is on its clock.
    `recorded`: output of an interrupted answer, replayed first. `record` is awaited with each batch
    of new events before parsing; `digest`: that of a recorded answer's requests. `receipts` keeps
    what a receipt needs. `listener` hears output events; `completed` is called once after a
    complete answer. `tool_loop` continues the answer after calls of the server's tools.
    """

    def __init__(
        self,
        engine: EngineThread,
        dispatcher: EventDispatcher,
        lease: Lease,
        request_id: str,
        seed: int,
        activity: Activity,
        arrival: Arrival | None = None,
        recorded: Recorded | None = None,
    ) -> None:
        self.id = request_id
        self.model = lease.served.id
        self.seed = seed
        self.created = int(time.time()) if recorded is None else recorded.created
        self.record: Callable[[Sequence[Event]], Awaitable[None]] | None = None
        self.digest = b""
        self.finishes: dict[int, Finish] = {}
        self.error: OmlxError | None = None
        self.load_ms = 0.0
        self.prompt_n = 0
        self.first_tokens: list[int] = []
        self.warnings: tuple[Reason, ...] = ()
        self.receipts: Recorder | None = None
        self.listener: Callable[[OutputEvent], None] = lambda event: None
        self.completed: Callable[[], None] | None = None
        self.tool_loop: Continuation | None = None
        self._engine = engine
        self._dispatcher = dispatcher
        self._lease = lease
        self._activity = activity
        self._arrival = arrival
        self.caller = Caller() if arrival is None else arrival.caller
        self._outputs: dict[str, tuple[int, OutputParser]] = {}
        self._texts: dict[str, AnswerText] = {}
        self._running: set[str] = set()
        self._recorded = () if recorded is None else recorded.batches
        self._inbox: list[Event] = []
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def served(self) -> ServedModel:
        return self._lease.served

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers of the answer, as far as the answer is known."""
        length = self.served.context_length
        return headers(length, self.prompt_n, self.finishes.values(), self.warnings)

    @property
    def prompts(self) -> int:
        return len(self.first_tokens)

    @property
    def n(self) -> int:
        """Choices, of all prompts."""
        return len(self._outputs)

    def submit(self, choice: ChoiceRequest, number: int, continued: Request | None) -> None:
        """Start choice `number` with the request that continues it, at first its own; None: it has
        ended, and is only replayed.

        Raises EngineDead; then the stream must be closed.
        """
        request = choice.request
        self._outputs[request.id] = number, OutputParser(self.served.tokenizer, choice.spec)
        if self.receipts is not None:
            self.receipts.begin(number, request, choice.spec, choice.constraint)
        self.prompt_n = request.prompt_n
        if request.sampling.choice == 0:
            self.first_tokens.append(request.tokens[0])
        if continued is None:
            return
        self._running.add(request.id)
        self._dispatcher.open(request.id, self._receive)
        if self._arrival is not None and self._arrival.prompt is not None:
            self._texts[request.id] = AnswerText()
        text = self._texts.get(request.id)
        self._activity.submitted(self.served.id, continued, self._arrival, text)
        try:
            self._engine.submit(self.served.id, continued, self._dispatcher)
            if self.prompt_n >= MIN_TOKENS:
                self._forecast(continued)
        except OmlxError as error:
            self._activity.observe(Failed(request.id, error))
            self._ended(request.id)
            raise

    @property
    def progress(self) -> Progress | None:
        """Progress of a long unread prompt."""
        return self._activity.progress(self.id)

    async def started(self, timeout_s: float) -> None:
        """Wait for the first event, at most `timeout_s`.

        Raises the error of a request that failed until then, so that it has its HTTP status.
        """
        await self._wait(timeout_s)
        for event in self._inbox:
            if isinstance(event, Failed):
                self.error = event.error
                raise event.error

    def batches(self, idle_s: float | None = None) -> AsyncGenerator[list[ChoiceEvent], None]:
        """Yield everything new since the last batch; an empty batch after `idle_s` without output,
        and each second in which a prompt was read.

        Raises the error that ended the stream. Text that is held back is no output.
        """
        tools = self.tool_loop
        return self.own_batches(idle_s) if tools is None else tools.batches(idle_s)

    async def own_batches(self, idle_s: float | None) -> AsyncGenerator[list[ChoiceEvent], None]:
        """Yield the batches of this generation alone."""
        for recorded in self._recorded:
            await asyncio.sleep(0)  # a long answer is parsed beside others
            replayed: list[ChoiceEvent] = []
            for event in recorded:
                replayed += await self._with_receipts(self._parse(event))
            yield replayed
        clock = asyncio.get_running_loop().time
        yielded_at = clock()
        while len(self.finishes) < self.n:
            timeout_s = None if idle_s is None else max(0.0, yielded_at + idle_s - clock())
            await self._wait(timeout_s)
            events, self._inbox = merge_tokens(self._inbox), []
            if self.record is not None and events:
                await self.record(events)
            batch: list[ChoiceEvent] = []
            read = any(isinstance(event, PrefillProgress) for event in events)
            for event in events:
                batch += await self._with_receipts(self._parse(event))
                if self.error is not None:
                    break
            silent_s, most_s = clock() - yielded_at, idle_s
            if read and most_s is not None:
                most_s = min(most_s, PROGRESS_S)
            if batch or (most_s is not None and silent_s >= most_s):
                yield batch
                yielded_at = clock()
            if self.error is not None:
                raise self.error

    def stop(self, error: OmlxError) -> bool:
        """End all choices; the reader of the stream gets the error. Return False if it was over."""
        continues = self.tool_loop is not None and self.tool_loop.stop(error)
        if self._closed or not self._running:
            return continues
        self._activity.stopped(self.id, error)
        self._inbox.append(Failed(min(self._running), error))  # of any choice: it ends the stream
        self._wake.set()
        for request_id in self._running:
            self._engine.cancel(request_id)
        return True

    def stop_after(self, seconds: float, error: OmlxError) -> None:
        """Stop with an error, unless the answer has ended until then."""
        self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self.stop, error)

    def close(self) -> None:
        """Cancel what is still running. The lease is released once the engine has ended it."""
        self._closed = True
        if self.tool_loop is not None:
            self.tool_loop.close()
        if self._timer is not None:
            self._timer.cancel()
        for request_id in self._running:
            self._engine.cancel(request_id)
        self._release_if_over()

    def hand_back(self) -> None:
        """Release the lease of an ended generation: the next may wait for room in memory."""
        if not self._running:
            self._lease.release()

    async def _wait(self, timeout_s: float | None) -> None:
        """Wait for an event, at most `timeout_s`."""
        if not self._inbox:
            timer = None
            if timeout_s is not None:
                timer = asyncio.get_running_loop().call_later(timeout_s, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                if timer is not None:
                    timer.cancel()
        self._wake.clear()

    def _parse(self, event: Event) -> list[ChoiceEvent]:
        """Turn an engine event into output events. Modifies `finishes` and `error`."""
        choice, parser = self._outputs[event.request_id]
        output: list[OutputEvent] = []
        match event:
            case TokensCommitted(tokens=tokens, drafted=drafted, logprobs=logprobs):
                if self.receipts is not None:
                    self.receipts.commit(choice, tokens)
                output = parser.feed(tokens, logprobs or (), drafted)
            case Finished(reason=reason, stats=stats):
                if self.receipts is not None:
                    self.receipts.finish(choice, reason)
                output = parser.finish(reason, stats)
                for part in output:
                    if isinstance(part, Finish):
                        self.finishes[choice] = part
            case Failed(error=error):
                self.error = error
            case PrefillProgress(logprobs=logprobs):
                output = [PromptLogprobs(logprobs)] if logprobs else []
        for part in output:
            self.listener(part)
        if event.request_id in self._texts:
            self._texts[event.request_id].add(output)
        return [ChoiceEvent(choice, part) for part in output]

    async def _with_receipts(self, events: list[ChoiceEvent]) -> list[ChoiceEvent]:
        """Give the end of a choice its receipt, if receipts are on."""
        if self.receipts is None or not events or not isinstance(events[-1].event, Finish):
            return events
        choice, finish = events[-1].choice, events[-1].event
        receipt = await self.receipts.keep(choice)
        return [*events[:-1], ChoiceEvent(choice, replace(finish, receipt=receipt))]

    def _forecast(self, request: Request) -> None:
        """Have the engine estimate when the first token comes, before the first pass."""

        def note(done: asyncio.Future[PromptForecast | None]) -> None:
            if not done.cancelled() and done.exception() is None and (known := done.result()):
                self._activity.forecast(request.id, known)

        future = self._engine.forecast(self.served.id, request.tokens)
        asyncio.wrap_future(future).add_done_callback(note)

    def _receive(self, event: Event) -> None:
        try:
            self._activity.observe(event)
        except Exception:  # otherwise the end would be lost, and the model never drain
            log.exception("an event was not counted")
        if isinstance(event, Finished | Failed):
            self._ended(event.request_id)
        self._inbox.append(event)
        self._wake.set()

    def _ended(self, request_id: str) -> None:
        self._running.discard(request_id)
        self._dispatcher.forget(request_id)
        self._release_if_over()

    def _release_if_over(self) -> None:
        if self._closed and not self._running:
            self._lease.release()
            completed, self.completed = self.completed, None
            if completed is not None and len(self.finishes) == self.n and self.error is None:
                completed()
