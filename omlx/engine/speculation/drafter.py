"""The interface of drafters: a proposal, then the draft; and the drafter of grammars."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Protocol

from omlx.draft_length import MAX_DRAFT_LENGTH
from omlx.engine.speculation.strategy import Clause
from omlx.engine.step.masking import forced_tokens
from omlx.engine.step.row import Row
from omlx.errors import Reason

FIRST_TIMED: Final = 4
TIMED_EVERY: Final = 16
"""Rounds timed on their own, before verification is launched: the first, then one in sixteen."""

ANY_LENGTH: Final = Clause("auto")

PROMPT_END: Final = ":prompt-end"
"""Behind the name of a draft model that skipped some of the prompt."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """An offer to draft up to `max_length` tokens, with the tokens where the drafter knows them.

    `match` is the length in tokens of a lookup's match, 0 for a draft model; `lag` counts the
    tokens that a draft model has to read first, `skipped` those of the prompt before them that it
    does not know; a draft model that `restarts` begins with its cached prefix. `clause` bounds the
    draft length. `tokens` are a lookup's. A `certain` proposal is accepted as a whole and comes
    before all others. A `one_pass` drafter makes all tokens at once.
    """

    drafter: str
    max_length: int
    match: int = 0
    lag: int = 0
    skipped: int = 0
    restarts: bool = False
    certain: bool = False
    clause: Clause = ANY_LENGTH
    tokens: tuple[int, ...] = ()
    one_pass: bool = False

    def passes(self, k: int) -> int:
        """Return the drafter's passes for a draft of k tokens."""
        return min(k, 1) if self.one_pass else k

    @property
    def readings(self) -> list[Proposal]:
        """This proposal, and one that first reads what a draft model has skipped of the prompt."""
        if not self.skipped:
            return [self]
        return [self, replace(self, lag=self.lag + self.skipped, skipped=0, restarts=True)]

    @property
    def acceptance_key(self) -> str:
        """Name under which acceptance is counted: a model that reads less is right less often."""
        return self.drafter + PROMPT_END if self.skipped else self.drafter

    @property
    def free(self) -> bool:
        """Whether drafting it runs no model."""
        return self.certain or self.match > 0


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft of `n` tokens: ids where the host knows them, else `array`, a device array [n].

    `seconds` is what drafting took, if it was timed; `array` is evaluated then. A draft model's
    passes may be shared by several `rows`: `seconds` is this row's share of them. Raises ValueError
    for other than `n` tokens: in a batch, the pass would fail for all rows.
    """

    drafter: str
    n: int
    tokens: tuple[int, ...] | None = None
    array: Sized | None = None
    seconds: float | None = None
    rows: int = 1

    def __post_init__(self) -> None:
        ids = self.array if self.tokens is None else self.tokens
        if ids is None or len(ids) != self.n:
            raise ValueError(f"{self.drafter} drafted other than {self.n} tokens")


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
        """Return the bytes of the KV cache for a row of `tokens` tokens, if it has one."""
        return 0

    @property
    def held_bytes(self) -> int:
        """Bytes of its rows' KV caches now."""
        return 0

    def propose(self, row: Row, limit: int, clause: Clause) -> Proposal | None:
        """Return the offer for the next round: at most `limit` tokens, within `clause`."""
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
        """Read the `skipped` tokens of the latest proposal, with the next draft."""
        return

    def observe(self, row: Row, accepted: int) -> None:
        """Learn that `accepted` tokens of the newest draft are in `row.tokens` now."""
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


def is_timed(rounds: int) -> bool:
    """Return whether a model's newest round, the `rounds`-th, is timed on its own."""
    return rounds <= FIRST_TIMED or rounds % TIMED_EVERY == 0


class GrammarDrafter(Drafter):
    """Drafts the tokens of a mask that allows no others: the whole draft is accepted.

    The target samples under the same mask, so a pass commits several tokens.
    """

    kind: ClassVar[str] = "forced"
    name = "forced"

    def __init__(self) -> None:
        self._forced: dict[int, tuple[int, ...]] = {}

    def propose(self, row: Row, limit: int, clause: Clause) -> Proposal | None:
        tokens: tuple[int, ...] = ()
        if row.mask is not None:
            tokens = forced_tokens(row.mask, min(limit, MAX_DRAFT_LENGTH))
        self._forced[row.id] = tokens
        if not tokens:
            return None
        return Proposal(self.name, len(tokens), certain=True, clause=clause)

    def draft(self, row: Row, limit: int) -> Draft | None:
        tokens = self._forced.get(row.id, ())[:limit]
        if not tokens:
            return None
        return Draft(self.name, len(tokens), tokens)

    def drop(self, row_id: int) -> None:
        self._forced.pop(row_id, None)
