"""Generated tokens of the last minutes, in steps of a few seconds: a bounded ring of sums.

A step without tokens is not stored.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

STEP_S: Final = 2
MAX_STEPS: Final = 450
"""A quarter of an hour of tokens without a pause."""


@dataclass(slots=True)
class Step:
    """Tokens of the `STEP_S` seconds from `at` (seconds since the epoch), and how many of them
    were drafted."""

    at: int
    tokens: int = 0
    drafted: int = 0


class Timeline:
    """`wall` is the time of day in seconds.

    While it is set back, tokens are added to the newest step.
    """

    def __init__(self, wall: Callable[[], float] = time.time, max_steps: int = MAX_STEPS) -> None:
        self._wall = wall
        self._steps: deque[Step] = deque(maxlen=max_steps)

    def add(self, tokens: int, drafted: int) -> None:
        at = int(self._wall()) // STEP_S * STEP_S
        if not self._steps or self._steps[-1].at < at:
            self._steps.append(Step(at))
        self._steps[-1].tokens += tokens
        self._steps[-1].drafted += drafted

    def since(self, at: float) -> Sequence[Step]:
        """The steps that begin at `at` or later, the newest last, which may still grow."""
        return [step for step in self._steps if step.at >= at]
