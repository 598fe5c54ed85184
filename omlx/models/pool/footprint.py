"""Memory footprint of this process and memory limit of this machine, in bytes."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import mlx.core as mx

SHARE: Final = 0.75
"""Default limit, as a fraction of the machine's memory; the rest is for other programs."""

_STATM: Final = Path("/proc/self/statm")
_RUSAGE_INFO_V2: Final = 2
_PHYS_FOOTPRINT: Final = 16 + 7 * 8
"""Offset of `ri_phys_footprint` in `struct rusage_info_v2`: after a UUID and seven counters."""


def used_bytes() -> int:
    """Return the bytes in use: by live MLX arrays or by the process, whichever is more.

    Buffers that MLX keeps for reuse do not count. Thread-safe.
    """
    return max(mx.get_active_memory(), footprint() - mx.get_cache_memory())


def footprint() -> int:
    """Return the bytes that the system counts for this process, 0 if it does not say."""
    if sys.platform == "darwin":
        return _darwin_footprint()
    try:
        return int(_STATM.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def default_limit_bytes() -> int:
    """Return three quarters of the machine's memory, at most what the GPU recommends."""
    share = int(machine_bytes() * SHARE)
    recommended = int(mx.device_info().get("max_recommended_working_set_size", 0))
    return min(share, recommended) if recommended else share


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
    mx.clear_cache()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # not every C library has it
            ctypes.CDLL(None).malloc_trim(0)


def _darwin_footprint() -> int:
    info = ctypes.create_string_buffer(512)
    if ctypes.CDLL(None).proc_pid_rusage(os.getpid(), _RUSAGE_INFO_V2, ctypes.byref(info)) != 0:
        return 0
    return int.from_bytes(info.raw[_PHYS_FOOTPRINT : _PHYS_FOOTPRINT + 8], sys.byteorder)
