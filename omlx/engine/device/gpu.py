"""The device: its buffers and attention kernels, and evaluations that keep a GPU awake.

After some seconds of quiet a GPU lowers its clock, and macOS may unwire the weights; the next
request waits for both. Each evaluation is one kernel over a few numbers, which a request that
arrives meanwhile hardly notices.
"""

from __future__ import annotations

import logging
import platform
import queue
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from math import inf
from typing import Final

import mlx.core as mx

from omlx.engine.device_errors import isolate
from omlx.engine.step.prefill import Kernels
from omlx.power import MainsWatch

_MATRIX_UNITS_SINCE: Final = 17
"""GPU generation of the M5."""
_MATRIX_UNITS_MACOS: Final = (26, 2)

_PRODUCTS: Final = ((16, 512, 8192), (2048, 512, 16))
"""Rows, inner dimension and columns: one fills the panels of each operand."""


def on_gpu() -> bool:
    return bool(mx.default_device().type == mx.DeviceType.gpu)


def device_kind() -> str:
    """Return the architecture of the device, of a CPU with the processor's name."""
    info = mx.device_info()
    names = [info.get("architecture", "")]
    if not on_gpu():
        names.append(info.get("device_name", ""))
    return " ".join(map(str, names))


def release_buffers() -> None:
    """Return the buffers that MLX keeps for reuse to the system.

    A GPU is waited for: command buffers in flight may refer to them, and macOS has panicked
    (ml-explore/mlx#3186). Raises what their passes raise.
    """
    if on_gpu():
        mx.synchronize()
    mx.clear_cache()


@cache
def fill_workspace() -> None:
    """Have the CPU's library of matrix products take its workspace, which it keeps.

    MLX does not count it, and it grows with the length of passes: OpenBLAS was measured to take 21
    MB with these two products, and 3 MB more with any. Once taken, it counts as used memory.
    """
    if not on_gpu():
        for rows, inner, columns in _PRODUCTS:
            mx.eval(mx.zeros((rows, inner)) @ mx.zeros((inner, columns)))


def attention_kernels() -> Kernels:
    """Return the fused attention kernels that the default device has."""
    if not on_gpu():
        return "none"
    generation = re.match(r"applegpu_g(\d+)", str(mx.device_info().get("architecture", "")))
    macos = tuple(int(part) for part in platform.mac_ver()[0].split(".")[:2] if part)
    if generation is None or macos < _MATRIX_UNITS_MACOS:
        return "metal"
    return "matrix units" if int(generation[1]) >= _MATRIX_UNITS_SINCE else "metal"


INTERVAL_S: Final = 0.5
"""Seconds between evaluations: an Apple GPU slows down after about 1.2 s."""

DURATION_S: Final = 30.0
"""Seconds after the last step: longer than an agent's tools usually take."""

log = logging.getLogger("omlx.engine")


class KeepWarm:
    """Waits for posts on the engine thread; where `allowed` returns True, makes some of its own.

    `allowed` must not wait; None: make none.
    """

    def __init__(
        self,
        allowed: Callable[[], bool] | None = None,
        evaluate: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowed = allowed
        self._evaluate = evaluate or evaluate_little
        self._clock = clock
        self._until = self._next = -inf

    def worked(self) -> None:
        """Count from now: a step runs."""
        if self._allowed is not None:
            now = self._clock()
            self._until, self._next = now + DURATION_S, now + INTERVAL_S

    def next_post(self, inbox: queue.SimpleQueue[Callable[[], None]]) -> Callable[[], None]:
        """Wait for the next post, or return an evaluation: every `INTERVAL_S`, until `DURATION_S`
        are over."""
        while self._allowed is not None and (now := self._clock()) < self._until:
            with suppress(queue.Empty):
                return inbox.get(timeout=max(0.0, self._next - now))
            self._next = self._clock() + INTERVAL_S
            if self._allowed():
                return self._run
        return inbox.get()

    def _run(self) -> None:
        """Evaluate; an error ends it until the next step: the engine decides about its device."""
        with isolate() as outcome:
            self._evaluate()
        if outcome.error is not None:
            self._until = -inf
            log.warning("the GPU is not kept warm", exc_info=outcome.error)


def warm_gpu(wanted: bool, device: mx.Device | None = None) -> KeepWarm:
    """Return a `KeepWarm`, which evaluates on mains power if `wanted`, and on a GPU alone."""
    device = device or mx.default_device()
    return KeepWarm(MainsWatch() if wanted and device.type == mx.gpu else None)


def evaluate_little() -> None:
    """Run one kernel on the default device."""
    mx.eval(mx.zeros((8,)) + 1)
