"""The events of a stream that is generated apart from its readers, for any number of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from omlx.server import sse
from omlx.server.dialect import Json, Wire

_END = b"\n\n"


class Replay:
    """Keeps every event as a frame, numbered from 0, `nbytes` in all. Used on the event loop."""

    def __init__(self, wire: Wire) -> None:
        self.nbytes = 0
        self._wire = wire
        self._frames: list[bytes] = []
        self._ended = False
        self._changed = asyncio.Event()

    @classmethod
    def of(cls, wire: Wire, content: bytes) -> Replay:
        """A stream that has ended, from its `content`."""
        replay = cls(wire)
        replay._frames = [frame + _END for frame in content.split(_END)[:-1]]
        replay._ended = True
        return replay

    @property
    def content(self) -> bytes:
        """All frames so far."""
        return b"".join(self._frames)

    def add(self, payloads: Sequence[Json]) -> None:
        for payload in payloads:
            self._append(sse.numbered(len(self._frames), self._wire.frame(payload)))
        self._wake()

    def fail(self, payloads: Sequence[Json]) -> None:
        """Add the last events of a stream that may still be continued: they have no number."""
        for payload in payloads:
            self._append(self._wire.frame(payload))
        self._wake()

    def finish(self) -> None:
        """Add what the dialect sends after the last event."""
        if self._wire.done:
            self._append(self._wire.done)

    def end(self) -> None:
        self._ended = True
        self._wake()

    async def frames(self, start: int, idle_s: float) -> AsyncGenerator[bytes, None]:
        """Yield the events from number `start` on, until the stream ends; after `idle_s` without
        one, what keeps a connection open."""
        while True:
            new = self._frames[start:]
            start += len(new)
            if new:
                yield b"".join(new)
            elif self._ended:
                return
            elif not await self._change(idle_s):
                yield self._wire.idle

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
