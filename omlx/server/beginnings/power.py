"""Whether this machine runs on mains power."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

SUPPLIES: Final = Path("/sys/class/power_supply")
"""Of Linux: a folder for each battery and each connector."""

COMMAND: Final = ("pmset", "-g", "batt")
"""Of macOS; names the present source in its first line."""

_WAIT_S: Final = 5.0


def on_mains() -> bool:
    """Return whether the machine is known to run on mains power. May take some milliseconds."""
    if sys.platform == "darwin":
        return mac_on_mains()
    return linux_on_mains()


def linux_on_mains(supplies: Path = SUPPLIES) -> bool:
    """Read the kernel's list: a connector that is online, or no battery of the machine itself."""
    batteries = False
    for supply in sorted(supplies.glob("*")):
        kind = _read(supply / "type")
        if kind == "Battery":
            batteries |= _read(supply / "scope") != "Device"  # that of a mouse does not count
        elif _read(supply / "online") == "1":
            return True
    return not batteries


def mac_on_mains(command: Sequence[str] = COMMAND) -> bool:
    """Ask the system; False if it does not answer."""
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_WAIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return "AC Power" in answer.stdout.partition("\n")[0]


def _read(file: Path) -> str:
    with suppress(OSError):
        return file.read_text().strip()
    return ""
