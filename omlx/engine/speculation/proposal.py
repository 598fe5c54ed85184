"""A drafter's offer to draft, and the draft that it then makes."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, replace
from typing import Final

from omlx.engine.strategy import Clause

ANY_LENGTH: Final = Clause("auto")

PROMPT_END: Final = ":prompt-end"
"""Behind the name of a draft model that skipped some of the prompt."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """An offer to draft up to `max_length` tokens, with the tokens where the drafter knows them.

    `match` is the length in tokens of a lookup's match, 0 for a draft model; `lag` counts the
    tokens that a draft model has to read first, `skipped` those of the prompt before them that it
    does not know; one that `restarts` begins with its cached prefix. `clause` bounds the draft
    length. `tokens` are a lookup's. A `certain` proposal is accepted as a whole and comes before
    all others.
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

    @property
    def readings(self) -> list[Proposal]:
        """Ways to draft it: a draft model that knows the end of a prompt can read all of it."""
        if not self.skipped:
            return [self]
        return [self, replace(self, lag=self.lag + self.skipped, skipped=0, restarts=True)]

    @property
    def record(self) -> str:
        """By what its acceptance is counted: a draft model that reads less is right less often."""
        return self.drafter + PROMPT_END if self.skipped else self.drafter

    @property
    def free(self) -> bool:
        """Whether no model has to run for it."""
        return self.certain or self.match > 0


@dataclass(frozen=True, slots=True)
class Draft:
    """`n` tokens to verify: ids where the host knows them, else `array`, a device array [n].

    `seconds` is what drafting took, if it was timed; `array` is evaluated then. A draft model's
    passes may be shared by several `rows`: `seconds` is this row's share of them. Raises ValueError
    where these are not n: in a batch, the pass would fail for all rows.
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
