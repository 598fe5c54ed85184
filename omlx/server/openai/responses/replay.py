"""The events of a response that is generated in the background, for any number of readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from omlx.server import sse
from omlx.server.dialect import Json


class Replay:
    """Keeps every event as a frame, `nbytes` in all. Used on the event loop only."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._frames: list[bytes] = []
        self._ended = False
        self._changed = asyncio.Event()

    def add(self, payloads: Sequence[Json]) -> None:
        frames = list(map(sse.named, payloads))
        self._frames += frames
        self.nbytes += sum(map(len, frames))
        self._wake()

    def end(self) -> None:
        self._ended = True
        self._wake()

    async def frames(self, start: int, idle_s: float) -> AsyncGenerator[bytes, None]:
        """Yield the events from number `start` on, until the response ends; a comment after
        `idle_s` without one."""
        while True:
            new = self._frames[start:]
            start += len(new)
            if new:
                yield b"".join(new)
            elif self._ended:
                return
            elif not await self._change(idle_s):
                yield sse.KEEP_ALIVE

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
