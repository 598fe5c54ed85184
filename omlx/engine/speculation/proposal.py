"""What a drafter says it could do, and what is made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from omlx.engine.strategy import Step

UNBOUND: Final = Step("auto")


@dataclass(frozen=True, slots=True)
class Proposal:
    """A drafter's word: it could draft up to `max_length` tokens, within the bounds of the `step` that admits it. `match`
    is 0 for a draft model; `lag` counts the tokens that a draft model must read first. A lookup's offer says which
    `tokens` it would propose. A `sure` offer is accepted as a whole, and comes before all others."""

    drafter: str
    max_length: int
    match: int = 0
    lag: int = 0
    sure: bool = False
    step: Step = UNBOUND
    tokens: tuple[int, ...] = ()

    @property
    def free(self) -> bool:
        """Whether no model runs for it."""
        return self.sure or self.match > 0


Choice: TypeAlias = tuple[Proposal, int] | None
"""An offer, and how many tokens of it; None for plain decoding."""
