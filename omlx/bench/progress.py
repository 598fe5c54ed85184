"""Progress of a measurement: a bar on a terminal; in a log, a line every half minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from math import inf
from typing import Final, NoReturn, Self

from tqdm import tqdm

LOG_INTERVAL_S: Final = 30.0


class Progress:
    """Progress in `total` units. `deadline`, a time of the `clock`, bounds the time left."""

    def __init__(
        self,
        total: int,
        unit: str,
        deadline: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bar: tqdm[NoReturn] = tqdm(total=total, unit=unit, disable=None)
        self._total, self._unit, self._done = total, unit, 0
        self._deadline = inf if deadline is None else deadline
        self._clock = clock
        self._began = clock()
        self._logged_at = -inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def start(self, name: str) -> None:
        """Show what runs from now on."""
        now = self._clock()
        if not self._done:
            self._began = now  # time before the first unit says nothing about the others
        self._bar.set_description(name)
        if self._bar.disable and now >= self._logged_at + LOG_INTERVAL_S:
            self._logged_at = now
            self.write(f"{name}: {self._done} of {self._total} {self._unit}s{self._left(now)}")

    def tick(self) -> None:
        """Count one finished unit."""
        self._done += 1
        self._bar.update()

    def reach(self, done: int) -> None:
        """Count the units up to `done` that were left out."""
        self._bar.update(max(0, done - self._done))
        self._done = max(done, self._done)

    def write(self, line: str) -> None:
        """Write a line above the bar."""
        self._bar.write(line, file=sys.stderr)

    def _left(self, now: float) -> str:
        if not self._done:
            return ""
        seconds = (now - self._began) / self._done * (self._total - self._done)
        return f", {max(0.0, min(seconds, self._deadline - now)) / 60:.0f} min left"
