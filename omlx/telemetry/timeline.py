"""What was generated lately, in steps of a few seconds: a bounded ring of sums.

Whoever has something to add adds it to the step of that moment. Where nothing happens there is no step, and no work.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

STEP_S: Final = 2
KEPT: Final = 450
"""A quarter of an hour without a pause."""


@dataclass(slots=True)
class Step:
    """What came in the `STEP_S` seconds from `at` on, in seconds since the epoch: tokens, and how many were drafted."""

    at: int
    tokens: int = 0
    drafted: int = 0


class Timeline:
    """`wall` tells the time of day. Where it is set back, the newest step takes what comes until it has caught up."""

    def __init__(self, wall: Callable[[], float] = time.time, kept: int = KEPT) -> None:
        self._wall = wall
        self._steps: deque[Step] = deque(maxlen=kept)

    def add(self, tokens: int, drafted: int) -> None:
        at = int(self._wall()) // STEP_S * STEP_S
        if not self._steps or self._steps[-1].at < at:
            self._steps.append(Step(at))
        self._steps[-1].tokens += tokens
        self._steps[-1].drafted += drafted

    def since(self, at: float) -> Sequence[Step]:
        """The steps that begin at `at` or later, the newest last; that one may still grow."""
        return [step for step in self._steps if step.at >= at]
