"""Measurements of which only one runs at a time: each takes the other's requests for a user's."""

from __future__ import annotations

from collections.abc import Callable

from omlx.errors import Conflict


class Exclusive:
    """Kinds of measurements of one server, each with a function that says what runs."""

    def __init__(self) -> None:
        self._running: list[Callable[[], Conflict | None]] = []

    def add(self, running: Callable[[], Conflict | None]) -> None:
        """Add a kind. `running` returns the error for another measurement, None if none runs."""
        self._running.append(running)

    def check(self) -> None:
        """Raise Conflict while a measurement runs."""
        for running in self._running:
            conflict = running()
            if conflict is not None:
                raise conflict
