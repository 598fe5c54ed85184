"""Memory that the operating system counts for a process, in bytes."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

_RUSAGE_INFO_V2: Final = 2
_PHYS_FOOTPRINT: Final = 16 + 7 * 8
"""Offset of `ri_phys_footprint` in `struct rusage_info_v2`: after a UUID and seven counters."""

_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGE_BYTES: Final = 256 << 10
_HEAPS: Final = 2


def footprint(pid: int | None = None) -> int:
    """Return the bytes counted for a process of this user (default: this one); 0 if unknown."""
    if pid is None:
        pid = os.getpid()
    if sys.platform == "darwin":
        return _darwin_footprint(pid)
    try:
        statm = Path(f"/proc/{pid}/statm").read_text("ascii")
        return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def machine_bytes() -> int:
    """Return the bytes of memory in this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def set_up_allocator() -> None:
    """Keep freed memory from staying with the process on Linux. Call before threads start."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # not every C library has it
            library = ctypes.CDLL(None)
            # A constant threshold for separate mappings. By default glibc raises it, up to 32 MB,
            # with each block that is freed; later blocks are then on a heap, where gaps between
            # small blocks cannot be returned.
            library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
            # Threads share the heaps. The default of eight per core would each keep their threads'
            # freed memory.
            library.mallopt(_M_ARENA_MAX, _HEAPS)


def trim() -> None:
    """Return freed memory to the system; on Linux the process keeps freed memory until then."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # not every C library has it
            ctypes.CDLL(None).malloc_trim(0)


def _darwin_footprint(pid: int) -> int:
    info = ctypes.create_string_buffer(512)
    if ctypes.CDLL(None).proc_pid_rusage(pid, _RUSAGE_INFO_V2, ctypes.byref(info)) != 0:
        return 0
    return int.from_bytes(info.raw[_PHYS_FOOTPRINT : _PHYS_FOOTPRINT + 8], sys.byteorder)
