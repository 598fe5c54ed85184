"""The interface of drafters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from omlx.engine.row import Row
from omlx.engine.speculation.proposal import Draft, Proposal
from omlx.engine.strategy import Clause
from omlx.errors import Reason


class Drafter(Protocol):
    """Proposes continuations of a row. Reads the row and never writes to it.

    `kind` is the drafter's name in strategy strings; strategies refuse the grammar drafter's, which
    runs under every strategy but `off`. `name` distinguishes drafters of one kind. The methods with
    a body are for drafters that learn from verification or cache prefixes.
    """

    kind: ClassVar[str]

    @property
    def name(self) -> str: ...

    def refusal(self, row: Row) -> Reason | None:
        """Return why it cannot draft for a row, whatever its tokens will be, or None."""
        return None

    def open(self, row: Row) -> None:
        """Begin a row that it may draft for: its prompt is read next."""
        return

    def cache_bytes(self, tokens: int) -> int:
        """Return the bytes of its KV cache of a row with so many tokens, if it has one."""
        return 0

    @property
    def held_bytes(self) -> int:
        """Bytes of its rows' KV caches now."""
        return 0

    def propose(self, row: Row, limit: int, clause: Clause) -> Proposal | None:
        """Return what it could draft now: at most `limit` tokens within `clause`."""
        ...

    def draft(self, row: Row, limit: int) -> Draft | None:
        """Draft at most `limit` tokens to follow `row.tokens`. Modifies its own state."""
        ...

    def draft_together(self, limits: Sequence[tuple[Row, int]]) -> dict[int, Draft]:
        """Draft for several rows at once, by row, at most as many tokens as each limit says.

        Rows that are left out are asked one by one. An error may concern any of them.
        """
        return {}

    def catch_up(self, row: Row, limit: int) -> int:
        """Read at most `limit` of the tokens by which it lags. Return how many are left."""
        return 0

    def read_whole(self, row: Row) -> None:
        """Read what the latest proposal says is skipped, with the next draft."""
        return

    def observe(self, row: Row, accepted: int) -> None:
        """Take in that `accepted` tokens of the newest draft now stand in `row.tokens`."""
        return

    def drop(self, row_id: int) -> None:
        """Forget a row."""
        ...

    def store(self, row: Row) -> None:
        """Cache the prefix of a row that ended without an error."""
        return

    def clear(self) -> None:
        """Evict all cached prefixes."""
        return

    def set_prefix_budget(self, max_bytes: int) -> None:
        """Cache at most `max_bytes` of prefixes from now on."""
        return
