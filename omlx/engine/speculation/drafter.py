"""What every drafter is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from omlx.engine.sequence import Sequence
from omlx.engine.speculation.proposal import Proposal
from omlx.engine.strategy import Step


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposal of `n` tokens. Ids where the host knows them; else `array`, a device array [n] for the runner.

    `seconds` is what making it took, if that was measured: then it is computed already. `pad` more tokens are read
    behind it because the wider pass costs less.
    """

    drafter: str
    n: int
    tokens: tuple[int, ...] | None = None
    array: object | None = None
    seconds: float | None = None
    pad: int = 0


class Drafter(Protocol):
    """Proposes continuations. Whatever it keeps per row is its own; `sequence` is read, never written.

    `kind` is its name in strategy strings; `name` tells it from others of its kind. One that learns nothing from what
    comes of its drafts, and keeps nothing of rows that have ended, inherits the rest.
    """

    kind: ClassVar[str]

    @property
    def name(self) -> str: ...

    def propose(self, sequence: Sequence, limit: int, step: Step) -> Proposal | None:
        """What it could do now: at most `limit` tokens, for the step that admits it. Commits to nothing."""
        ...

    def draft(self, sequence: Sequence, limit: int) -> Draft | None:
        """At most `limit` tokens to follow `sequence.tokens`, or None. Modifies the drafter's state for the row."""
        ...

    def observe(self, sequence: Sequence, accepted: int) -> None:
        """The newest proposal for this row was verified; `accepted` of its tokens stand in `sequence.tokens`."""
        return

    def drop(self, row: int) -> None:
        """Forget a row."""
        ...

    def store(self, sequence: Sequence) -> None:
        """A row ends well: what the drafter has of its tokens may be kept for others that begin with them."""
        return

    def clear(self) -> None:
        """Forget what was kept."""
        return

    def limit_bytes(self, max_bytes: int) -> None:
        """Keep at most so much from now on."""
        return
