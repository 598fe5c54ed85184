"""How likely the next drafted token is accepted, given that all before it were.

A draft model's chance depends on the position in the draft; a lookup's on how long the match is by then. Counts decay,
so that a change of text shows within some twenty rounds; a request starts from what the model's earlier requests saw.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

DECAY: Final = 0.96
PRIOR_WEIGHT: Final = 4.0
MATCH_STEPS: Final = (3, 4, 6, 9, 17, 33)
MATCH_CHANCE: Final = (0.35, 0.5, 0.6, 0.75, 0.85, 0.92)
"""What a match of 3, 4-5, 6-8, 9-16, 17-32, 33+ tokens is worth before anything is seen."""

FIRST_CHANCE: Final = 0.6
POSITIONS: Final = 16


def match_slot(length: int) -> int:
    """The class of a match `length` tokens long."""
    return max(i for i, step in enumerate(MATCH_STEPS) if length >= step) if length >= MATCH_STEPS[0] else 0


@dataclass(slots=True)
class Acceptance:
    """Decayed counts by slot. `prior` is the model's own history, fed along with every request's."""

    prior: Acceptance | None = None
    start: tuple[float, ...] = ()
    _tries: dict[int, float] = field(default_factory=dict)
    _hits: dict[int, float] = field(default_factory=dict)

    def chance(self, slot: int) -> float:
        tries, hits = self._tries.get(slot, 0.0), self._hits.get(slot, 0.0)
        return (hits + PRIOR_WEIGHT * self._expected(slot)) / (tries + PRIOR_WEIGHT)

    def learn(self, slots: list[int], accepted: int) -> None:
        """A draft whose tokens fell into `slots` was verified (or compared with what came anyway)."""
        for i, slot in enumerate(slots[: accepted + 1]):
            self._tries[slot] = self._tries.get(slot, 0.0) * DECAY + 1.0
            self._hits[slot] = self._hits.get(slot, 0.0) * DECAY + (1.0 if i < accepted else 0.0)
        if self.prior is not None:
            self.prior.learn(slots, accepted)

    def seen(self, slot: int) -> float:
        return self._tries.get(slot, 0.0)

    def _expected(self, slot: int) -> float:
        if self.prior is not None:
            return self.prior.chance(slot)
        if slot < len(self.start):
            return self.start[slot]
        # A position never reached is about as good as the one before it.
        return self.chance(slot - 1) if slot > 0 else FIRST_CHANCE


def draft_slots(draft: int) -> list[int]:
    """The slots of a draft model's proposal."""
    return [min(i, POSITIONS - 1) for i in range(draft)]


def match_slots(match: int, draft: int) -> list[int]:
    """The slots of a lookup's proposal: an accepted token makes the match longer."""
    return [match_slot(match + i) for i in range(draft)]
