"""How much memory this process takes, and how much it may: the machine's side of the engine's memory guard."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

import mlx.core as mx

_STATM: Final = Path("/proc/self/statm")
_RUSAGE_INFO_V2: Final = 2
_PHYS_FOOTPRINT: Final = 16 + 7 * 8
"""Where `ri_phys_footprint` stands in `struct rusage_info_v2`: behind a UUID and seven counters."""


def used_bytes() -> int:
    """The larger of what MLX holds for live arrays and what the system counts for this process, less the buffers that
    MLX has ready for reuse."""
    return max(mx.get_active_memory(), footprint() - mx.get_cache_memory())


def footprint() -> int:
    """Bytes that the system counts for this process; 0 where it cannot be asked."""
    if sys.platform == "darwin":
        return _darwin_footprint()
    try:
        return int(_STATM.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def machine_limit() -> int:
    """Bytes that models may take on this machine: what the GPU's driver recommends, or all of the memory."""
    device = mx.device_info()
    recommended = int(device.get("max_recommended_working_set_size", 0))
    return recommended or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _darwin_footprint() -> int:
    info = ctypes.create_string_buffer(512)
    if ctypes.CDLL(None).proc_pid_rusage(os.getpid(), _RUSAGE_INFO_V2, ctypes.byref(info)) != 0:
        return 0
    return int.from_bytes(info.raw[_PHYS_FOOTPRINT : _PHYS_FOOTPRINT + 8], sys.byteorder)
