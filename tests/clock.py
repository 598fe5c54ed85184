"""A clock that a test moves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clock:
    """Clock in seconds, standing still until a test sets `now`."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now
