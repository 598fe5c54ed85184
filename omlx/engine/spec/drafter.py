"""What every drafter is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from omlx.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposal of `n` tokens. Ids where the host knows them; else `array`, a device array [n] for the runner."""

    drafter: str
    n: int
    tokens: tuple[int, ...] | None = None
    array: object | None = None


class Drafter(Protocol):
    """Proposes continuations. Whatever it keeps per row is its own; `sequence` is read, never written."""

    @property
    def name(self) -> str: ...

    def propose(self, sequence: Sequence, limit: int) -> Draft | None:
        """At most `limit` tokens to follow `sequence.tokens`, or None. Modifies the drafter's state for the row."""
        ...

    def observe(self, sequence: Sequence, accepted: int) -> None:
        """The newest proposal for this row was verified; `accepted` of its tokens stand in `sequence.tokens`."""
        ...

    def drop(self, row: int) -> None:
        """Forget a row."""
        ...

    def store(self, row: int, entry: int) -> None:
        """The row's conversation is kept as `entry`; what the drafter has of it moves along."""
        ...

    def restore(self, entry: int, row: int, length: int) -> None:
        """A row takes over `entry`, of which its first `length` tokens are the same."""
        ...

    def evict(self, entry: int) -> None:
        """Forget a stored entry."""
        ...
