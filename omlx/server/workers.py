"""Threads for the work of requests: templates, tokenizers and grammars, images, attached files.

Results that requests need again are kept.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Lock
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K")
T = TypeVar("T")

THREADS: Final = 20
"""Work at the same time: `TEXTS`, two images and two files."""
TEXTS: Final = 16
"""Work at the same time of all lanes of one each: two of each of eight models."""


class Workers:
    """Runs work in threads, by lanes. Used on the event loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, "omlx-work")
        self._texts = asyncio.Semaphore(TEXTS)
        self._lanes: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()

    async def run(self, lane: Hashable, work: Callable[[], T], at_once: int = 1) -> T:
        """Run `work` after earlier work of this lane, of which `at_once` runs. Raises what it does.

        Work whose caller is cancelled while it waits is dropped. Running work continues, and its
        lane stays occupied. Raises RuntimeError once shut down.
        """
        rooms = [self._lanes.setdefault(lane, asyncio.Semaphore(at_once))]
        if at_once == 1:
            rooms.append(self._texts)
        with ExitStack() as occupied:
            for room in rooms:
                await room.acquire()
                occupied.callback(room.release)
            future = asyncio.get_running_loop().run_in_executor(self._pool, work)
            leave = occupied.pop_all().close
        future.add_done_callback(lambda done: _end(leave, done))
        return await asyncio.shield(future)

    def shut_down(self) -> None:
        self._pool.shutdown(wait=False)


def _end(leave: Callable[[], None], done: asyncio.Future[T]) -> None:
    leave()
    if not done.cancelled():
        done.exception()  # retrieved: the caller may have gone


class LruCache(Generic[K, T]):
    """LRU cache of at most `most` results, of at most `total` by `size`. Thread-safe."""

    def __init__(self, most: int, total: int, size: Callable[[T], int]) -> None:
        self._most, self._total, self._size = most, total, size
        self._kept: OrderedDict[K, T] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K, make: Callable[[], T]) -> T:
        """Return the result of `make`, or the one kept under `key`. Raises what `make` does."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        result = make()
        with self._lock:
            kept = self._kept
            kept[key] = result
            while len(kept) > self._most or sum(map(self._size, kept.values())) > self._total:
                kept.popitem(last=False)
        return result
