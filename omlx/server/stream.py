"""The running choices of one request: n sequences of the engine, one stream of events.

Events cross from the engine thread through one `Router`. A stream that is closed early cancels what still
runs; its lease on the model ends with the last of its sequences, not with the client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable

from omlx.engine.thread import EngineThread
from omlx.engine.types import (
    Event,
    Failed,
    Finished,
    PrefillProgress,
    Request,
    TokensCommitted,
)
from omlx.errors import OmlxError
from omlx.models.pool.pool import Lease, ServedModel
from omlx.server.activity import Activity
from omlx.server.dialect import ChoiceEvent
from omlx.server.router import Router
from omlx.text.events import Finish, OutputEvent, PromptLogprobs
from omlx.text.output import OutputParser, OutputSpec


class GenerationStream:
    """`batches` gives the events, once; `close` may come at any time and is final.

    `finishes` fills as choices end. Of `prompts`, the newest has `prompt_n` tokens; `first_tokens` has one of each.
    `seed` is the one in use, requested or drawn. `activity` observes every event, also after the client
    has disconnected.
    """

    def __init__(
        self,
        engine: EngineThread,
        router: Router,
        lease: Lease,
        request_id: str,
        seed: int,
        activity: Activity,
    ) -> None:
        self.id = request_id
        self.seed = seed
        self.created = int(time.time())
        self.finishes: dict[int, Finish] = {}
        self.error: OmlxError | None = None
        self.prompt_n = 0
        self.first_tokens: list[int] = []
        self._engine = engine
        self._router = router
        self._lease = lease
        self._activity = activity
        self._outputs: dict[str, tuple[int, OutputParser]] = {}
        self._running: set[str] = set()
        self._mail: list[Event] = []
        self._wake = asyncio.Event()
        self._closed = False

    @property
    def served(self) -> ServedModel:
        return self._lease.served

    @property
    def prompts(self) -> int:
        return len(self.first_tokens)

    @property
    def n(self) -> int:
        return len(self._outputs)

    def submit(self, request: Request, spec: OutputSpec, number: int | None = None) -> None:
        """Start one choice, the sampling's own unless it has another `number` in the answer.

        Raises EngineDead, after which the stream wants to be closed.
        """
        self._outputs[request.id] = (
            request.sampling.choice if number is None else number,
            OutputParser(self.served.tokenizer, spec),
        )
        self.prompt_n = len(request.tokens)
        if request.sampling.choice == 0:
            self.first_tokens.append(request.tokens[0])
        self._running.add(request.id)
        self._router.open(request.id, self._receive)
        self._activity.submitted(self.served.id, request)
        try:
            self._engine.submit(self.served.id, request, self._router)
        except OmlxError as error:
            self._activity.observe(Failed(request.id, error))
            self._ended(request.id)
            raise

    async def started(self, patience_s: float) -> None:
        """Wait for a sign of life, at most `patience_s`. Raises what failed before there was any output."""
        await self._wait(patience_s)
        for event in self._mail:
            if isinstance(event, Failed):
                self.error = event.error
                raise event.error

    async def batches(self, idle_s: float | None = None) -> AsyncGenerator[list[ChoiceEvent], None]:
        """Everything new since the last batch; an empty one where there is nothing to say for `idle_s`.

        Raises what failed. Prefill progress and text that is held back are nothing to say.
        """
        clock, said = asyncio.get_running_loop().time, asyncio.get_running_loop().time()
        while len(self.finishes) < self.n:
            await self._wait(None if idle_s is None else max(0.0, said + idle_s - clock()))
            mail, self._mail = self._mail, []
            batch = [
                ChoiceEvent(choice, event)
                for message in _together(mail)
                for choice, event in self._read(message)
            ]
            if batch or (idle_s is not None and clock() - said >= idle_s):
                yield batch
                said = clock()
            if self.error is not None:
                raise self.error

    def close(self) -> None:
        """Cancel what still runs and let go of the model as soon as the engine has."""
        self._closed = True
        for request_id in self._running:
            self._engine.cancel(request_id)
        self._release_if_over()

    async def _wait(self, timeout_s: float | None) -> None:
        if not self._mail:
            alarm = (
                None
                if timeout_s is None
                else asyncio.get_running_loop().call_later(timeout_s, self._wake.set)
            )
            try:
                await self._wake.wait()
            finally:
                if alarm is not None:
                    alarm.cancel()
        self._wake.clear()

    def _read(self, event: Event) -> list[tuple[int, OutputEvent]]:
        choice, output = self._outputs[event.request_id]
        match event:
            case TokensCommitted(tokens=tokens, logprobs=logprobs):
                return [(choice, delta) for delta in output.feed(tokens, logprobs or ())]
            case Finished(reason=reason, stats=stats):
                ending = output.finish(reason, stats)
                self.finishes.update(
                    (choice, event) for event in ending if isinstance(event, Finish)
                )
                return [(choice, event) for event in ending]
            case Failed(error=error):
                self.error = error
                return []
            case PrefillProgress(logprobs=logprobs):
                return [(choice, PromptLogprobs(logprobs))] if logprobs else []

    def _receive(self, event: Event) -> None:
        self._activity.observe(event)
        if isinstance(event, Finished | Failed):
            self._ended(event.request_id)
        self._mail.append(event)
        self._wake.set()

    def _ended(self, request_id: str) -> None:
        self._running.discard(request_id)
        self._router.forget(request_id)
        self._release_if_over()

    def _release_if_over(self) -> None:
        if self._closed and not self._running:
            self._lease.release()


def _together(mail: Iterable[Event]) -> list[Event]:
    """Tokens of one choice that were delivered together, as one event: nobody would see the frames of each apart."""
    told: list[Event] = []
    newest: dict[str, int] = {}
    for event in mail:
        at = newest.get(event.request_id)
        if (
            at is not None
            and isinstance(event, TokensCommitted)
            and isinstance(said := told[at], TokensCommitted)
        ):
            told[at] = TokensCommitted(
                event.request_id,
                said.tokens + event.tokens,
                said.drafted + event.drafted,
                None if event.logprobs is None else (*(said.logprobs or ()), *event.logprobs),
            )
        else:
            newest[event.request_id] = len(told)
            told.append(event)
    return told
