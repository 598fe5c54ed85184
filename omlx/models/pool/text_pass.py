"""A text that is read without generating: what is computed from it, not what follows it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import mlx.core as mx

from omlx.engine.device_errors import DEVICE, DeviceFault, isolate
from omlx.errors import EngineError

if TYPE_CHECKING:
    from omlx.engine.loop import EngineLoop
    from omlx.engine.memory.guard import MemoryGuard
    from omlx.engine.model import Cache, Model


class ReadText(ABC):
    """A text as token ids, at least one."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens
        self._fault: DeviceFault | None = None

    def step(self, loop: EngineLoop, memory: MemoryGuard) -> bool:
        """As `advance`. After a first error of the device the text is read again from its start.

        Raises EngineError after a second one.
        """
        launched, done = DEVICE.seen, False
        with isolate() as outcome:
            done = self.advance(loop, memory)
        fault = DEVICE.outcome(launched, computed=done)
        if fault is None and outcome.error is not None:
            raise outcome.error
        if fault is None:
            return done
        if self._fault is not None:
            raise EngineError("device.failed", kind=str(fault.kind))
        self._fault = fault
        self.restart()
        return False

    @abstractmethod
    def restart(self) -> None:
        """Forget what was read."""

    @abstractmethod
    def advance(self, loop: EngineLoop, memory: MemoryGuard) -> bool:
        """Read the next part; return whether it was the last. Call it on the engine thread.

        Reads nothing as long as memory is being freed. Raises Overloaded if there is none for KV
        cache and activations, BadRequest if there never is.
        """

    def admitted(self, loop: EngineLoop, memory: MemoryGuard) -> bool:
        """Return whether there is memory to begin. Raises as `advance`."""
        layout = loop.scheduler.prefix.layout
        return memory.admit_text(len(self.tokens), layout, partial(self.activations, loop))

    def activations(self, loop: EngineLoop, tokens: int) -> int:
        """Return the bytes of the shortest pass over a text of so many tokens."""
        return loop.chunk.least(tokens)


class TextPass(ReadText):
    """A text with a KV cache of its own while it is read.

    It is read in chunks, so that engine steps of other requests run in between.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        super().__init__(tokens)
        self._read = 0
        self._cache: Cache = []

    def restart(self) -> None:
        self._read, self._cache = 0, []

    def advance(self, loop: EngineLoop, memory: MemoryGuard) -> bool:
        """Read the next chunk. Raises what `read` and `finish` raise, too."""
        if not self._read:
            if not self.admitted(loop, memory):
                return False
            self._cache = loop.runner.make_cache()
        wanted = min(loop.limits.prefill_slice, len(self.tokens) - self._read)
        chunk = self.tokens[self._read : self._read + loop.chunk.fit_alone(self._read, wanted)]
        result = self.read(loop.runner.model, mx.array([chunk], mx.uint32), self._cache)
        self._read += len(chunk)
        done = self._read == len(self.tokens)
        mx.eval([layer.state for layer in self._cache], *([result] if done else []))
        if done:
            self._cache = []
            self.finish(result)
        return done

    @abstractmethod
    def read(self, model: Model, tokens: mx.array, cache: Cache) -> mx.array:
        """Compute ids [1, tokens] after those in the cache; return what `finish` needs."""

    @abstractmethod
    def finish(self, result: mx.array) -> None:
        """Take the result of the last chunk, which is evaluated."""
