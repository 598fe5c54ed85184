"""Processor time of other programs, from which a measurement detects a busy machine.

Sources, both for the whole machine in ticks: `/proc/stat` (Linux), `host_statistics` (macOS).
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

BUSY_SHARE: Final = 0.15
"""Share of all processors — more use by other programs distorts a measurement."""

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_HOST_CPU_LOAD_INFO: Final = 3
_IDLE: Final = 2  # of user, system, idle, nice


@dataclass(frozen=True, slots=True)
class ProcessorTimes:
    """Seconds of all processors since boot: in total, idle, and of this process."""

    total: float
    idle: float
    own: float


def processor_times() -> ProcessorTimes | None:
    """Read the times; None on a system that does not report them."""
    try:
        ticks, idle = _darwin() if sys.platform == "darwin" else _linux()
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    process = os.times()
    own = process.user + process.system + process.children_user + process.children_system
    return ProcessorTimes(ticks * _TICK_S, idle * _TICK_S, own)


def others_since(before: ProcessorTimes | None) -> tuple[float, float]:
    """Return processor seconds since `before`: of other programs, of all; 0 if unknown."""
    now = processor_times()
    if before is None or now is None:
        return 0.0, 0.0
    total = now.total - before.total
    others = total - (now.idle - before.idle) - (now.own - before.own)
    return max(0.0, others), max(0.0, total)


def _linux() -> tuple[int, int]:
    first = Path("/proc/stat").read_text("ascii").split("\n", 1)[0]
    ticks = [int(field) for field in first.split()[1:9]]  # those of guests are part of user
    return sum(ticks), ticks[3] + ticks[4]  # idle, and idle while a disk is read


def _darwin() -> tuple[int, int]:
    ticks, count = (ctypes.c_uint32 * 4)(), ctypes.c_uint32(4)
    system, host = _mach_host()
    if system.host_statistics(host, _HOST_CPU_LOAD_INFO, ticks, ctypes.byref(count)) != 0:
        raise OSError("host_statistics")
    return sum(ticks), ticks[_IDLE]


@cache
def _mach_host() -> tuple[Any, int]:
    system = ctypes.CDLL(None)
    return system, system.mach_host_self()
