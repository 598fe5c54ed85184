"""Memory footprint of this process and memory limit of this machine, in bytes."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from omlx.engine.device.gpu import release_buffers
from omlx.engine.memory import PASSES
from omlx.errors import ConfigError, ModelError
from omlx.machine import footprint, machine_bytes, trim
from omlx.models.catalog.files import ModelFiles
from omlx.models.catalog.registry import ModelEntry

SHARE: Final = 0.75
"""Fraction of the machine's memory — default limit; the rest is for other programs."""

CACHE_SHARE: Final = 8
"""Divisor of the limit — bounds freed buffers, reused between layers of long passes.

A few GB on large machines. 8 GB made one server of others 11 % slower on 128 GB; 32 GB, all wired,
made another 24 times slower.
"""

SLACK: Final = 24 << 20
"""Bytes — measured uncounted memory of passes, whatever the limit.

Copies of a KV cache in flight, and workspace of matrix products.
"""


def used_bytes() -> int:
    """Return the bytes in use: the larger of live MLX arrays and process footprint.

    Buffers that MLX keeps for reuse do not count. Thread-safe.
    """
    return max(mx.get_active_memory(), footprint() - mx.get_cache_memory())


def beside_arrays(used: Callable[[], int] = used_bytes) -> int:
    """Return the bytes in use outside of live MLX arrays. Thread-safe."""
    return max(0, used() - mx.get_active_memory())


def taken_bytes() -> int:
    """Return the bytes charged to the memory budget: used bytes and `SLACK`. Thread-safe."""
    return used_bytes() + SLACK


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Bytes in use by kind, which add up to the bytes in use.

    `caches`: KV and prefix caches, with the arrays of passes. `other`: all but arrays of models.
    """

    weights: int = 0
    caches: int = 0
    other: int = 0

    @classmethod
    def of(cls, used: int, weights: int, arrays: int) -> MemoryParts:
        """Split `used` bytes, of which `arrays` are live MLX arrays and of those `weights`."""
        weights = min(weights, used)  # mapped ones are not in memory before a pass has read them
        caches = min(max(0, arrays - weights), used - weights)
        return cls(weights, caches, used - weights - caches)

    @property
    def total(self) -> int:
        return self.weights + self.caches + self.other


def mlx_bytes() -> dict[str, int]:
    """Return the bytes of live arrays and of buffers kept for reuse by MLX. Thread-safe."""
    return {"mlx_active": mx.get_active_memory(), "mlx_cache": mx.get_cache_memory()}


def default_limit_bytes() -> int:
    """Return `SHARE` of the machine's memory, at most the GPU's recommended working set."""
    share = int(machine_bytes() * SHARE)
    recommended = int(mx.device_info().get("max_recommended_working_set_size", 0))
    return min(share, recommended) if recommended else share


def limit_bytes(configured: int | None) -> int:
    """Return the memory limit for models and caches: the setting, or the default."""
    return default_limit_bytes() if configured is None else configured


def free_bytes(limit: int) -> int:
    return max(0, limit - used_bytes())


def device() -> str:
    """Return the type of the computing device: cpu or gpu."""
    return str(mx.default_device().type.name)


def weight_bytes(entry: ModelEntry, dtype: str) -> int:
    """Estimate the bytes of a model's weights in memory.

    Dense 16-bit weights are float32 on a CPU. Reads the config.
    """
    widened = dtype == "float32" or (dtype == "auto" and device() == "cpu")
    if entry.quantization is not None or not widened:
        return entry.size_bytes
    stored = None
    with suppress(ModelError):
        config = ModelFiles.recent(entry.path).config
        stored = config.get("dtype") or config.get("torch_dtype")
    return entry.size_bytes * (1 if stored == "float32" else 2)


def release_memory() -> None:
    """Return unreferenced memory to the system. Call on the engine thread.

    On Linux freed memory stays with the process until its allocator is trimmed.
    """
    gc.collect()
    release_buffers()
    trim()


def bound_mlx(limit: int) -> None:
    """Set MLX's memory limits, which no other code sets. Thread-safe.

    Above its limit MLX waits for work in flight before allocating more, and frees reusable buffers:
    these count for the system, but for no budget here. Memory of this process outside MLX is
    subtracted.
    """
    mx.set_memory_limit(max(limit // 2, int(PASSES * limit) - beside_arrays()))
    mx.set_cache_limit(limit // CACHE_SHARE)


def wire(nbytes: int | None, most: int | None = None) -> None:
    """Keep up to `nbytes` of arrays in wired memory; None or 0: none, as macOS decides.

    `most` is the GPU's recommendation, None: query the device. Raises ConfigError above `most`, and
    without a GPU.
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
    """Callable that returns freed memory to the system, at most once per `INTERVAL_S`.

    Fragments left by short-lived arrays and texts would else count as used: 130 of 360 MB in
    minutes of mixed load on Linux.
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
