"""How far a measurement has come: a bar on a terminal; elsewhere, as in a log, a line from time to time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from math import inf
from typing import Final, NoReturn, Self

from tqdm import tqdm

SILENCE: Final = 30.0
"""Seconds between two lines, at least."""


class Progress:
    """Of `total` units, as far as they come before `deadline`, a time of the `clock`."""

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
        self._told = -inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def runs(self, name: str) -> None:
        """From now on this is what runs."""
        now = self._clock()
        if not self._done:
            self._began = now  # what came before the first unit says nothing of the others
        self._bar.set_description(name)
        if self._bar.disable and now >= self._told + SILENCE:
            self._told = now
            self.tell(f"{name}: {self._done} of {self._total} {self._unit}s{self._left(now)}")

    def tick(self) -> None:
        """One more is done."""
        self._done += 1
        self._bar.update()

    def tell(self, line: str) -> None:
        """Write a line of its own, above the bar."""
        self._bar.write(line, file=sys.stderr)

    def _left(self, now: float) -> str:
        if not self._done:
            return ""
        seconds = (now - self._began) / self._done * (self._total - self._done)
        return f", {max(0.0, min(seconds, self._deadline - now)) / 60:.0f} min left"
