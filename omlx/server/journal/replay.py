"""The events of a stream that is generated apart from its readers, for any number of them."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, Sequence

from omlx.server.http import sse
from omlx.server.request.dialect import Json, Wire

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
        numbers = map(sse.number, replay._frames)
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
            self._append(sse.numbered(self.next, self._frame(payload)))
            self.next += 1
        self._wake()

    def jump(self) -> None:
        """Give the events that follow numbers that no other process gives: microseconds since the
        epoch. A client that has one of them has events that only this process knows.
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
        """Add what the dialect sends after the last event."""
        if self._wire.done:
            self._append(self._wire.done)

    def end(self) -> None:
        self._ended = True
        self._wake()

    async def frames(self, start: int, idle_s: float) -> AsyncGenerator[bytes, None]:
        """Yield the frames from index `start` on, until the stream ends; after `idle_s` without
        one, what keeps a connection open."""
        while True:
            new = self._frames[start:]
            start += len(new)
            if new:
                yield b"".join(new)
            elif self._ended:
                return
            elif not await self._change(idle_s):
                yield sse.numbered_idle(self._wire.idle)

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
