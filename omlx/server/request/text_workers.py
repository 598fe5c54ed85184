"""Threads for text: templates, tokenizers, grammars. They release Python's lock for most of their
time, so that the event loop and the engine continue.

Work waits in a lane for the one before it. Each model has two lanes, so that a short request waits
neither for a long one nor for another model; more threads would only take processor time from the
engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")

THREADS: Final = 16
"""Lanes that can work at the same time: two for each of eight models."""


class TextWorkers:
    """Runs work in lanes. Lives on the event loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, "omlx-text")
        self._lanes: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    async def run(self, lane: Hashable, work: Callable[[], T]) -> T:
        """Run `work` after what came to this lane before. Raises what it does.

        Work whose caller is cancelled while it waits is dropped. Running work continues, and its
        lane stays occupied.
        """
        lock = self._lanes.setdefault(lane, asyncio.Lock())
        await lock.acquire()
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        future.add_done_callback(lambda done: _leave(lock, done))
        return await asyncio.shield(future)

    def shut_down(self) -> None:
        self._pool.shutdown(wait=False)


def _leave(lock: asyncio.Lock, done: asyncio.Future[T]) -> None:
    lock.release()
    if not done.cancelled():
        done.exception()  # retrieved: the caller may have gone
