"""An answer that is generated apart from its clients, recorded, and replayed to any number."""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from functools import partial

from starlette.responses import JSONResponse

from omlx.engine.types import Event
from omlx.errors import EngineDead, OmlxError, Reason
from omlx.server.http import errors
from omlx.server.http.transport import Json
from omlx.server.journal.journal import AnswerFile, Journal, Owned, Part
from omlx.server.request.dialect import Exchange, Wire, event_number, numbered_event, numbered_idle
from omlx.server.request.opening import Recorded, dump
from omlx.server.request.stream import PROGRESS_S, ChoiceEvent, GenerationStream
from omlx.server.request.usage import Progress, with_forecast

log = logging.getLogger("omlx.server")

_END = b"\n\n"


class Replay:
    """Keeps every event as a frame, `nbytes` in all. Used on the event loop.

    Events have ascending numbers: they are counted from 0, and `next` is that of the next one.
    """

    def __init__(self, wire: Wire) -> None:
        self.nbytes = 0
        self.next = 0
        self._wire = wire
        self._frames: list[bytes] = []
        self._numbers: list[int] = []  # of the first frames; the last ones may have none
        self._ended = False
        self._changed = asyncio.Event()

    @classmethod
    def of(cls, wire: Wire, content: bytes) -> Replay:
        """A stream that has ended, from its `content`."""
        replay = cls(wire)
        replay._frames = [frame + _END for frame in content.split(_END)[:-1]]
        numbers = map(event_number, replay._frames)
        replay._numbers = [number for number in numbers if number is not None]
        replay._ended = True
        return replay

    @property
    def content(self) -> bytes:
        """All frames so far."""
        return b"".join(self._frames)

    def add(self, payloads: Sequence[Json]) -> None:
        for payload in payloads:
            self._numbers.append(self.next)
            self._append(numbered_event(self.next, self._frame(payload)))
            self.next += 1
        self._wake()

    def jump(self) -> None:
        """Number the following events in microseconds since the epoch, as no other process does: a
        client that has such a number has events that only this process knows.
        """
        self.next = max(self.next, time.time_ns() // 1000)

    def after(self, number: int) -> int | None:
        """Return the index of the frame that follows event `number`, for `frames`; None if there
        is no such event. -1 is before the first one.
        """
        if number < 0:
            return 0
        index = bisect_left(self._numbers, number)
        is_there = self._numbers[index : index + 1] == [number]
        return index + 1 if is_there else None

    def fail(self, payloads: Sequence[Json]) -> None:
        """Add the last events of a stream that may still be continued: they have no number."""
        for payload in payloads:
            self._append(self._frame(payload))
        self._wake()

    def finish(self) -> None:
        """Add the frame that the dialect sends after the last event."""
        if self._wire.done:
            self._append(self._wire.done)

    def end(self) -> None:
        self._ended = True
        self._wake()

    async def frames(
        self, start: int, idle_s: float, progress: Callable[[], Progress | None] = lambda: None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the frames from index `start` on, until the stream ends; after `idle_s` without
        one, or each second while a prompt has `progress`, comments."""
        while True:
            new = self._frames[start:]
            start += len(new)
            if new:
                yield b"".join(new)
            elif self._ended:
                return
            elif not await self._change(idle_s if progress() is None else min(idle_s, PROGRESS_S)):
                yield b"".join(map(numbered_idle, self._wire.silence(progress())))

    def _frame(self, payload: Json) -> bytes:
        if self._wire.number is not None:
            payload = payload | {self._wire.number: self.next}
        return self._wire.frame(payload)

    def _append(self, frame: bytes) -> None:
        self._frames.append(frame)
        self.nbytes += len(frame)

    async def _change(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Answer:
    """An answer in progress. `readers` counts its clients; `body_hash` is of the request's body.

    An interrupted answer begins with its `recorded` events; `caught_up` is set behind them. The
    answer is recorded in `journal`, if given, until a write has failed: a record with a gap would
    be continued with other events than a client has.
    """

    def __init__(
        self,
        owner: str,
        exchange: Exchange,
        stream: GenerationStream,
        journal: Journal | None,
        body_hash: bytes,
        recorded: Recorded | None = None,
    ) -> None:
        self.owned = Owned(owner, stream.id)
        self.exchange = exchange
        self.stream = stream
        self.encoder = exchange.encoder(stream)
        self.replay = Replay(exchange.wire)
        self.readers = 0
        self.body_hash = body_hash
        self.caught_up = asyncio.Event()
        self._recorded = recorded
        self._journal = journal
        self._written = 0 if recorded is None else len(recorded.batches)
        self._has_gap = False
        if journal is not None:
            stream.record = self._record
        self._body = b""
        self._error: OmlxError | None = None
        self._ended = asyncio.Event()

    @property
    def id(self) -> str:
        return self.stream.id

    @property
    def streams(self) -> bool:
        return self.exchange.stream or self.exchange.background

    @property
    def unrecorded(self) -> Replay | None:
        """The events, if the journal lacks some of them."""
        return self.replay if self._journal is None or self._has_gap else None

    async def whole(self) -> bytes:
        """Return the body of an answer that is no stream. Raises the error that ended it."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._body

    async def run(self) -> None:
        """Generate; once cancelled, the answer may be continued from its record."""
        final = False
        try:
            await self._generate()
            final = True
        except OmlxError as error:
            final = await self._failed(error)
        except Exception as error:  # the edge of a task: each reader gets the error
            log.exception("an answer failed")
            final = await self._failed(errors.unexpected(error))
        finally:
            self.stream.close()
            if self.exchange.on_end is not None:
                self.exchange.on_end(self.encoder, final=final)
            self.replay.end()
            self.caught_up.set()
            self._ended.set()

    async def _generate(self) -> None:
        if self.streams:
            self.replay.add(with_forecast(self.encoder.start(), self.stream.progress))
        events: list[ChoiceEvent] = []
        firsts = iter(() if self._recorded is None else self._recorded.firsts)
        self._catch_up(firsts)
        async for batch in self.stream.batches():
            if self.streams:
                self.replay.add(self.encoder.feed(batch))
            else:
                events += batch
            self._catch_up(firsts)
        if self.streams:
            self.replay.finish()
            content = self.replay.content
        else:
            self._body = content = bytes(JSONResponse(self.encoder.body(events)).body)
        if self._journal is not None:
            await self._journal.run(lambda file: self._finish(file, content))

    def _catch_up(self, firsts: Iterator[int]) -> None:
        """Number the events of the next recorded batch as those that clients have."""
        if self.caught_up.is_set():
            return
        first = next(firsts, None)
        if first is not None:
            self.replay.next = first
            return
        if self._recorded is not None and self._recorded.torn:
            self.replay.jump()
        self.caught_up.set()

    def _finish(self, file: AnswerFile, content: bytes) -> None:
        file.finish(self.id, zlib.compress(content, 1), time.time())

    async def _record(self, events: Sequence[Event]) -> None:
        """Record a batch before any client sees its events. If that fails, events get numbers that
        no other process continues.
        """
        content = dump(self.replay.next, events)
        if self._journal is None or self._has_gap or content is None:
            return
        written = await self._journal.append(Part(self.id, self._written, content))
        self._written += 1
        if written:
            return
        if written is False:
            log.warning(Reason("answer.off.evicted", {"id": self.id}).message)
        self._has_gap = True
        self.replay.jump()

    async def _failed(self, error: OmlxError) -> bool:
        """End with an error. Return whether that is final: another process may continue the
        record."""
        self._error = error
        payloads = self.encoder.failed(error)
        if isinstance(error, EngineDead) and self.unrecorded is None:
            self.replay.fail(payloads)
            return False
        self.replay.add(payloads)
        if self._journal is not None:
            await self._journal.run(partial(AnswerFile.drop, id=self.id))
        return True
