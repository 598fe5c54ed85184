"""Threads for the work of requests: templates, tokenizers and grammars, images, attached files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")

THREADS: Final = 20
"""Work at the same time: of two lanes for each of eight models, two images and two files."""


class Workers:
    """Runs work in threads, by lanes. Used on the event loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, "omlx-work")
        self._lanes: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()

    async def run(self, lane: Hashable, work: Callable[[], T], at_once: int = 1) -> T:
        """Run `work` after earlier work of this lane, of which `at_once` runs. Raises what it does.

        Work whose caller is cancelled while it waits is dropped. Running work continues, and its
        lane stays occupied.
        """
        room = self._lanes.setdefault(lane, asyncio.Semaphore(at_once))
        await room.acquire()
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        future.add_done_callback(lambda done: _leave(room, done))
        return await asyncio.shield(future)

    def shut_down(self) -> None:
        self._pool.shutdown(wait=False)


def _leave(room: asyncio.Semaphore, done: asyncio.Future[T]) -> None:
    room.release()
    if not done.cancelled():
        done.exception()  # retrieved: the caller may have gone
