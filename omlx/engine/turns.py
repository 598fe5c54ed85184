"""Turns of loaded models on a device: the less urgent get a part of the time. Pure Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from omlx.engine.types import HELD

if TYPE_CHECKING:
    from omlx.engine.loop import EngineLoop


class Turns:
    """Seconds of steps by model, while models of different urgency have work."""

    def __init__(self) -> None:
        self._held_s: dict[int, float] = {}  # since a held model's newest step, by id
        self._step_s: dict[int, float] = {}  # of the newest step

    def due(self, busy: Sequence[EngineLoop]) -> Sequence[EngineLoop]:
        """Return the loops to step now: the most urgent, and others that are due."""
        if len(busy) < 2:
            self._held_s.clear()
            return busy
        urgent = min(loop.urgency for loop in busy)
        return [loop for loop in busy if loop.urgency == urgent or self._may_step(loop)]

    def stepped(self, loop: EngineLoop, busy: Sequence[EngineLoop], seconds: float) -> None:
        """Record a step of `loop` beside other `busy` loops."""
        self._step_s[id(loop)], self._held_s[id(loop)] = seconds, 0.0
        for other in busy:
            if other is not loop:
                self._held_s[id(other)] = self._held_s.get(id(other), 0.0) + seconds

    def forget(self, loop: EngineLoop) -> None:
        """Drop the times of a model that is unloaded."""
        self._held_s.pop(id(loop), None)
        self._step_s.pop(id(loop), None)

    def _may_step(self, loop: EngineLoop) -> bool:
        held_s = self._held_s.get(id(loop), 0.0)
        return loop.frees_memory or held_s >= HELD * self._step_s.get(id(loop), held_s)
