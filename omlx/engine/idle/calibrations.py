"""The calibrations of the loaded models. On the engine thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from omlx.engine.heartbeat import Heartbeat
from omlx.engine.idle.calibration import Calibration
from omlx.engine.types import CalibrationState

if TYPE_CHECKING:
    from omlx.engine.loop import EngineLoop


class Calibrations:
    """By the name of the model; none unless `enabled`."""

    def __init__(self, heartbeat: Heartbeat, *, enabled: bool) -> None:
        self._heartbeat = heartbeat
        self._enabled = enabled
        self._by_name: dict[str, tuple[Calibration, EngineLoop]] = {}

    @property
    def pending(self) -> bool:
        return any(calibration.pending for calibration, _ in self._by_name.values())

    def add(self, name: str, loop: EngineLoop) -> None:
        if self._enabled and loop.limits.generates:
            self._by_name[name] = Calibration(name, loop), loop

    def remove(self, name: str) -> None:
        self._by_name.pop(name, None)

    def clear(self) -> None:
        self._by_name = {}

    def state(self, name: str) -> CalibrationState:
        if name not in self._by_name:
            return CalibrationState.OFF
        return self._by_name[name][0].state

    def run(self, interrupted: Callable[[], bool]) -> None:
        """Calibrate every model until done or until `interrupted`, which is called before each
        pass.
        """
        for calibration, loop in self._by_name.values():

            def between_passes(loop: EngineLoop = loop) -> bool:
                self._heartbeat.begin(loop)
                return interrupted()

            calibration.run(between_passes)
        self._heartbeat.end()
