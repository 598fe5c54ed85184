"""Long work on the engine thread, in steps between which requests of loaded models continue."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""Work that pauses at each `yield` and returns its result."""


def run_through(steps: Generator[object, None, T]) -> T:
    """Run all steps without pauses, where no other model is served. Return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            result: T = finished.value
            return result
