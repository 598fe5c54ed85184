"""Facts of this machine for `omlx doctor`, and warnings about them.

Facts are read once; warnings are a pure function of them, so that a Mac's warnings are tested on
any machine.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final

import mlx.core as mx

from omlx.errors import Reason
from omlx.power import Heat, Power, read_power

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


def read_machine() -> Machine:
    info = mx.device_info()
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processors=os.cpu_count() or 1,
        device=str(mx.default_device().type.name),
        device_name=str(info.get("device_name", UNKNOWN)),
        architecture=str(info.get("architecture", UNKNOWN)),
        metal=mx.metal.is_available(),
        mlx=version("mlx"),
        macos=platform.mac_ver()[0] if sys.platform == "darwin" else "",
        variables={key: value for key, value in os.environ.items() if key.startswith("MLX_")},
        power=read_power(),
    )


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
