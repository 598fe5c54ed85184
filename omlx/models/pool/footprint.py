"""Memory footprint of this process and memory limit of this machine, in bytes."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable
from typing import Final

import mlx.core as mx

from omlx.engine.device.gpu import release_buffers
from omlx.engine.memory import PASSES
from omlx.errors import ConfigError
from omlx.process_memory import footprint, trim

SHARE: Final = 0.75
"""Default limit, as a fraction of the machine's memory; the rest is for other programs."""

CACHE_SHARE: Final = 8
"""One byte in so many of the limit is kept in freed buffers: the layers of a long pass reuse each
other's, a few GB on large machines. 8 GB made one server of others 11 % slower on 128 GB; 32 GB,
all wired, made another 24 times slower."""

SLACK: Final = 24 << 20
"""Bytes that passes were measured to take beside what is counted, whatever the limit: copies of a
KV cache in flight, and what matrix products take beside the first ones."""


def used_bytes() -> int:
    """Return the bytes in use: by live MLX arrays or by the process, whichever is more.

    Buffers that MLX keeps for reuse do not count. Thread-safe.
    """
    return max(mx.get_active_memory(), footprint() - mx.get_cache_memory())


def beside_arrays(used: Callable[[], int] = used_bytes) -> int:
    """Return the bytes of those in use that no live MLX array takes. Thread-safe."""
    return max(0, used() - mx.get_active_memory())


def taken_bytes() -> int:
    """Return the bytes that the memory budget has given away: those in use, and some for what is
    not counted. Thread-safe.
    """
    return used_bytes() + SLACK


def mlx_bytes() -> dict[str, int]:
    """Return the bytes of live arrays and of buffers that MLX keeps for reuse. Thread-safe."""
    return {"mlx_active": mx.get_active_memory(), "mlx_cache": mx.get_cache_memory()}


def default_limit_bytes() -> int:
    """Return three quarters of the machine's memory, at most what the GPU recommends."""
    share = int(machine_bytes() * SHARE)
    recommended = int(mx.device_info().get("max_recommended_working_set_size", 0))
    return min(share, recommended) if recommended else share


def limit_bytes(configured: int | None) -> int:
    """Return the bytes that models and caches may take: the setting, or the default."""
    return default_limit_bytes() if configured is None else configured


def free_bytes(limit: int) -> int:
    """Return the bytes of a limit that are not in use."""
    return max(0, limit - used_bytes())


def device() -> str:
    """Return the type of the device that computes: cpu or gpu."""
    return str(mx.default_device().type.name)


def machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def release_memory() -> None:
    """Return unreferenced memory to the system. Call it on the engine thread.

    On Linux freed memory stays with the process until its allocator is trimmed.
    """
    gc.collect()
    release_buffers()
    trim()


def bound_mlx(limit: int) -> None:
    """Tell MLX the memory limit: the only place where its own limits are set. Thread-safe.

    Above its limit MLX waits for work in flight before it allocates more, and gives back buffers
    that it keeps for reuse: they count for the system, and for no budget here. What this process
    holds beside MLX is subtracted.
    """
    mx.set_memory_limit(max(limit // 2, int(PASSES * limit) - beside_arrays()))
    mx.set_cache_limit(limit // CACHE_SHARE)


def wire(nbytes: int | None, most: int | None = None) -> None:
    """Keep up to `nbytes` of arrays in wired memory; None or 0: none, as macOS decides.

    `most` is what the GPU recommends, None: ask it. Raises ConfigError for more, and without a GPU.
    """
    if not nbytes:
        return
    if most is None:
        most = int(mx.device_info().get("max_recommended_working_set_size", 0))
    if not most:
        raise ConfigError("memory.wired_no_gpu")
    if nbytes > most:
        raise ConfigError("memory.wired", wired=nbytes >> 20, most=most >> 20)
    mx.set_wired_limit(nbytes)


class Trimmer:
    """Returns freed memory to the system, at most once per `INTERVAL_S`.

    What short-lived arrays and texts leave between longer-lived ones would else count as used:
    130 of 360 MB in minutes of mixed load on Linux.
    """

    INTERVAL_S: Final = 0.1

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._trimmed_at = -math.inf

    def __call__(self) -> None:
        now = self._clock()
        if now - self._trimmed_at >= self.INTERVAL_S:
            self._trimmed_at = now
            trim()
