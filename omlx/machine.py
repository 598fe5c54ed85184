"""This machine and this installation: facts for `omlx doctor`, memory of processes, commands.

Facts are read once; warnings are a pure function of them, so that a Mac's warnings are tested on
any machine. Memory is counted as the operating system does, in bytes. Commands are the program's
name for a shell, and packages to add.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from omlx.errors import Reason
from omlx.power import Heat, Power

UNWIRED_MACOS: Final = 27
"""Major version of macOS — since then screen updates may unwire a large residency set."""

REWIRED_MLX: Final = (0, 32, 2)
"""Version of mlx — the first with several residency sets: GLM-5.1 on an M3 Ultra made 0.46 tok/s
before, 13.2 with it (mlx#4211)."""

UNKNOWN: Final = "not known"


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts about hardware, system and mlx."""

    system: str
    processors: int
    device: str  # mlx's device type: cpu or gpu
    device_name: str
    architecture: str  # the GPU's generation as mlx names it, such as applegpu_g16s
    metal: bool
    mlx: str
    macos: str = ""  # empty on other systems
    # The environment's `MLX_` variables, which change how mlx computes.
    variables: Mapping[str, str] = field(default_factory=dict)
    power: Power = field(default_factory=lambda: Power(None))


def machine_rows(machine: Machine) -> Iterator[tuple[str, ...]]:
    yield "system", machine.system
    if machine.macos:
        yield "macOS", machine.macos
    yield "processors", str(machine.processors)
    yield "device", f"{machine.device}: {machine.device_name}"
    yield "architecture", machine.architecture
    yield "Metal", "yes" if machine.metal else "no"
    yield from sorted(machine.variables.items())


def power_rows(power: Power) -> Iterator[tuple[str, ...]]:
    yield "source", _choice(power.mains, "mains", "battery")
    yield "Low Power Mode", _choice(power.low_power, "on", "off")
    yield "heat", UNKNOWN if power.heat is None else _describe(power.heat)


def warnings(machine: Machine) -> Iterator[Reason]:
    """Yield conditions that slow this machine down, each with a remedy."""
    if machine.device != "gpu":
        yield Reason("doctor.no_metal" if machine.macos else "doctor.no_gpu")
    if machine.macos and _is_unwired(machine.macos, machine.mlx):
        yield Reason("doctor.unwired", {"macos": machine.macos, "mlx": machine.mlx})
    if machine.power.low_power:
        yield Reason("doctor.low_power")
    if machine.power.heat is not None and machine.power.heat.throttled:
        yield Reason("doctor.hot", {"heat": _describe(machine.power.heat)})


def _is_unwired(macos: str, mlx: str) -> bool:
    (major, *_) = _numbers(macos) or (0,)
    return major >= UNWIRED_MACOS and _numbers(mlx) < REWIRED_MLX


def _numbers(text: str) -> tuple[int, ...]:
    # The first three numbers: major, minor, patch.
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def _describe(heat: Heat) -> str:
    if not heat.throttled:
        return "none recorded"
    return f"warning level {heat.level}, processor at {heat.speed_percent} %"


def _choice(value: bool | None, yes: str, no: str) -> str:
    if value is None:
        return UNKNOWN
    return yes if value else no


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


PROGRAM: Final = "omlx"
_ROOT: Final = Path(__file__).resolve().parents[1]


def program_words() -> list[str]:
    """Return the start of a command line: `omlx` where PATH has it."""
    if shutil.which(PROGRAM) is not None:
        return [PROGRAM]
    script = Path(sys.executable).with_name(PROGRAM)
    return [str(script)] if script.is_file() else [sys.executable, "-m", PROGRAM]


def extra_command(extra: str) -> str:
    """Return a command line that adds an extra's packages to this installation.

    Never the bare name of this package: an index may have another package of that name.
    """
    install = _install_words()
    if (_ROOT / "pyproject.toml").is_file():
        return shlex.join([*install, "-e", f"{_ROOT}[{extra}]"])
    try:
        declared = requires(PROGRAM) or []
    except PackageNotFoundError:  # files without metadata
        declared = []
    marker = f'extra == "{extra}"'
    packages = [one.partition(";")[0].strip() for one in declared if marker in one]
    return shlex.join([*install, *packages])


def classes_command() -> str:
    """Return a command line that adds mlx-vlm without packages for training, sound and video.

    64 MB, where the extra `vision` is 722 MB.
    """
    install = shlex.join(_install_words())
    return f"{install} --no-deps mlx-vlm && {install} pillow requests"


def _install_words() -> list[str]:
    if find_spec("pip") is None:  # an environment made by uv
        return ["uv", "pip", "install", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install"]
