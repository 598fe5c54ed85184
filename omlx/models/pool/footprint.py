"""How much memory this process takes, and how much it may: the one place that asks the machine.

What counts is what the process holds: weights, caches and drafts alike.
"""

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
"""Of the machine's memory; the rest is for everybody else."""

_STATM: Final = Path("/proc/self/statm")
_RUSAGE_INFO_V2: Final = 2
_PHYS_FOOTPRINT: Final = 16 + 7 * 8
"""Where `ri_phys_footprint` stands in `struct rusage_info_v2`: behind a UUID and seven counters."""


def used_bytes() -> int:
    """The larger of what MLX holds for live arrays and what the system counts for this process, less the buffers that
    MLX has ready for reuse. Any thread may ask."""
    return max(mx.get_active_memory(), footprint() - mx.get_cache_memory())


def footprint() -> int:
    """Bytes that the system counts for this process; 0 where it cannot be asked."""
    if sys.platform == "darwin":
        return _darwin_footprint()
    try:
        return int(_STATM.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def default_limit_bytes() -> int:
    """Three quarters of the machine's memory, and no more than the GPU says that it works well with."""
    share = int(machine_bytes() * SHARE)
    recommended = int(mx.device_info().get("max_recommended_working_set_size", 0))
    return min(share, recommended) if recommended else share


def device() -> str:
    """Where models are computed: cpu or gpu."""
    return str(mx.default_device().type.name)


def machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def release_memory() -> None:
    """Return to the system what nobody refers to any more. On the engine thread.

    On Linux freed memory stays with the process until its allocator is told.
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
