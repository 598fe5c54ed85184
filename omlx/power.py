"""Power of this machine: mains or battery, Low Power Mode, heat; and keeping a Mac awake.

Read from files on Linux, from `pmset` on macOS. The parsers are pure and return None (unknown) for
unrecognised output. A child `caffeinate` prevents sleep while requests are open:

    idle ── a request ──► child ── no request for LINGER_S ──► ended and reaped
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

SUPPLIES: Final = Path("/sys/class/power_supply")
"""Folder on Linux with a subfolder for each battery and each connector."""

PMSET: Final = ("pmset", "-g")
"""Command on macOS: prints the settings in use; with `batt` the power source, with `therm` heat."""

INTERVAL_S: Final = 30.0
"""Seconds — lifetime of an answer in `MainsWatch`."""

CHECK_S: Final = 1.0
"""Seconds between checks for requests — macOS sleeps after a minute at the earliest."""

LINGER_S: Final = 10.0
"""Seconds after the last request — the next turn of a conversation reuses the child."""

RETRY_S: Final = 60.0
"""Seconds from a failure of the child to the next attempt."""

_END_S: Final = 2.0
"""Seconds for the child to exit before it is killed."""

_WAIT_S: Final = 5.0
_LOW: Final = "1"  # `powermode`: 0 is automatic, 1 low, 2 high

log = logging.getLogger("omlx")


@dataclass(frozen=True, slots=True)
class Heat:
    """Throttling by heat: the warning `level`, 0 for none, and the processor's speed in percent."""

    level: int = 0
    speed_percent: int = 100

    @property
    def throttled(self) -> bool:
        return self.level > 0 or self.speed_percent < 100


@dataclass(frozen=True, slots=True)
class Power:
    """State of the power supply; None: not known."""

    mains: bool | None
    low_power: bool | None = None
    heat: Heat | None = None


def read_power(platform: str = sys.platform, command: Sequence[str] = PMSET) -> Power:
    """Read the power state. On macOS this runs three programs, some 50 ms."""
    if platform != "darwin":
        return Power(linux_on_mains())
    return Power(
        parse_mains(_answer([*command, "batt"])),
        parse_low_power(_answer(command)),
        read_heat(platform, command),
    )


def read_heat(platform: str = sys.platform, command: Sequence[str] = PMSET) -> Heat | None:
    """Read throttling by heat. On macOS this runs a program, some 20 ms."""
    return parse_heat(_answer([*command, "therm"])) if platform == "darwin" else None


def on_mains(platform: str = sys.platform, command: Sequence[str] = PMSET) -> bool:
    """Return whether the machine is known to run on mains power. May take some milliseconds."""
    if platform == "darwin":
        return parse_mains(_answer([*command, "batt"])) is True
    return linux_on_mains()


def linux_on_mains(supplies: Path = SUPPLIES) -> bool:
    """Read the kernel's list: a connector that is online, or no battery of the machine itself."""
    batteries = False
    for supply in sorted(supplies.glob("*")):
        kind = _read(supply / "type")
        if kind == "Battery":
            batteries |= _read(supply / "scope") != "Device"  # a mouse's battery does not count
        elif _read(supply / "online") == "1":
            return True
    return not batteries


def parse_mains(batt: str) -> bool | None:
    """Parse `pmset -g batt`, whose first line names the present source."""
    source = re.match(r"Now drawing from '(.+)'", batt)
    return None if source is None else source[1] == "AC Power"


def parse_low_power(settings: str) -> bool | None:
    """Parse `pmset -g`: `lowpowermode`, or `powermode` on a machine with a high power mode too."""
    mode = re.search(r"^\s*(?:lowpowermode|powermode)\s+(\d)", settings, re.M)
    return None if mode is None else mode[1] == _LOW


def parse_heat(therm: str) -> Heat | None:
    """Parse `pmset -g therm`: warning levels since the start, or notes that none was recorded."""
    levels = re.findall(r"(?:thermal|performance) warning level\s*=\s*(\d+)", therm, re.I)
    speeds = re.findall(r"CPU_Speed_Limit\s*=\s*(\d+)", therm)
    if not levels and not speeds and "warning level has been recorded" not in therm:
        return None
    return Heat(max(map(int, levels), default=0), min(map(int, speeds), default=100))


class MainsWatch:
    """Last known power source: a callable that never waits.

    Asks again at most every `INTERVAL_S`: passes a job to `start`, which runs the job in another
    thread.
    """

    def __init__(
        self,
        ask: Callable[[], bool] = on_mains,
        start: Callable[[Callable[[], None]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._start = start or _start_thread
        self._clock = clock
        self._asked_at = -INTERVAL_S
        self._mains = False  # before the first answer

    def __call__(self) -> bool:
        now = self._clock()
        if now - self._asked_at >= INTERVAL_S:
            self._asked_at = now
            self._start(self._update)
        return self._mains

    def _update(self) -> None:
        self._mains = self._ask()


def _start_thread(job: Callable[[], None]) -> None:
    threading.Thread(target=job, name="omlx-power", daemon=True).start()


def _answer(command: Sequence[str]) -> str:
    """Return the output of a program; empty if the program cannot run, fails or does not end."""
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_WAIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout


def _read(file: Path) -> str:
    with suppress(OSError):
        return file.read_text().strip()
    return ""


class Awake:
    """The assertion that prevents idle sleep. Does nothing where `platform` is not macOS.

    The child ends by itself with this process, however that ends (`-w`). The display may sleep, and
    a closed lid still puts the machine to sleep. `wanted` returns the setting. `clock` is
    monotonic, in seconds.
    """

    def __init__(
        self,
        wanted: Callable[[], bool],
        *,
        platform: str = sys.platform,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wanted = wanted
        self._possible = platform == "darwin"
        self._clock = clock
        self._child: subprocess.Popen[bytes] | None = None
        self._until = self._retry_at = -inf
        self._warned = self._closed = False
        self._lock = threading.Lock()  # `close` may be called while a thread updates

    async def run(self, in_use: Callable[[], bool]) -> None:
        """Follow `in_use`, whether requests are open, until cancelled."""
        try:
            while self._possible:
                busy = in_use()
                if busy or self._child is not None:
                    await asyncio.to_thread(self.update, busy=busy)  # starting it takes some ms
                await asyncio.sleep(CHECK_S)
        finally:
            self.close()

    def update(self, *, busy: bool) -> None:
        with self._lock:
            now = self._clock()
            if busy:
                self._until = now + LINGER_S
            needed = now < self._until and self._wanted() and self._possible
            if not needed or self._closed:
                self._end()
            elif self._child is None:
                if now >= self._retry_at:
                    self._start()
            elif self._child.poll() is not None:
                self._failed(f"status {self._child.returncode}")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._end()

    def _start(self) -> None:
        quiet = subprocess.DEVNULL
        command = ["caffeinate", "-i", "-w", str(os.getpid())]
        try:
            # A session of its own: Ctrl-C in a terminal must not end it before the last answer.
            self._child = subprocess.Popen(
                command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
            )
        except OSError as error:
            self._failed(error.strerror or type(error).__name__)

    def _failed(self, detail: str) -> None:
        self._child, self._retry_at = None, self._clock() + RETRY_S
        if not self._warned:
            self._warned = True
            fields = {"command": "caffeinate", "detail": detail}
            log.warning(
                "this Mac may go to sleep while requests are open", extra={"fields": fields}
            )

    def _end(self) -> None:
        if (child := self._child) is None:
            return
        self._child = None
        child.terminate()
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
