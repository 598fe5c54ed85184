"""How likely the next drafted token is accepted, given that all before it were.

A draft model's chance depends on the position in the draft, a lookup's on how long the match is by then: both are a
*slot*. Counts decay, so that a change of text shows within some twenty drafts; a request starts from what earlier
requests of the model saw.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final

DECAY: Final = 0.97
"""What a draft leaves of the evidence before it, in a request. The model's history forgets ten times slower."""

PRIOR_WEIGHT: Final = 4.0
MATCH_STEPS: Final = (3, 4, 6, 9, 17, 33)
MATCH_CHANCE: Final = (0.5, 0.7, 0.8, 0.85, 0.9, 0.95)
"""What a match of 3, 4-5, 6-8, 9-16, 17-32, 33+ tokens is worth before anything is seen."""

FIRST_CHANCE: Final = (0.6,)
"""The same for a draft model's first token; a position never reached is as good as all together."""

SLOTS: Final = 16
SURE: Final = 0.998


def slot(match: int, i: int) -> int:
    """Where token `i` of a draft is counted: an accepted token makes a match longer. `match` is 0 for a draft model."""
    return bisect_right(MATCH_STEPS, max(match + i, MATCH_STEPS[0])) - 1 if match else min(i, SLOTS - 1)


@dataclass(slots=True)
class Acceptance:
    """Decayed counts by slot. `start` is the belief before any count, `prior` the model's history."""

    start: tuple[float, ...] = FIRST_CHANCE
    prior: Acceptance | None = None
    _tries: list[float] = field(default_factory=lambda: [0.0] * SLOTS)
    _hits: list[float] = field(default_factory=lambda: [0.0] * SLOTS)
    _chances: list[float] = field(default_factory=list)

    def learn(self, match: int, drafted: int, accepted: int) -> None:
        """A draft was verified, or compared with what came anyway; behind its first miss nothing is known."""
        decay = DECAY if self.prior is not None else 1.0 - (1.0 - DECAY) / 10
        places = [slot(match, i) for i in range(min(drafted, accepted + 1))]
        # What lies deeper than a draft model is asked for ages as well, or one bad spell would end it for good.
        for place in set(places) if match else range(SLOTS):
            self._tries[place] *= decay
            self._hits[place] *= decay
        for i, place in enumerate(places):
            self._tries[place] += 1.0
            self._hits[place] += i < accepted
        self._chances = []
        if self.prior is not None:
            self.prior.learn(match, drafted, accepted)

    def fade(self, share: float) -> None:
        """Keep only `share` of the evidence: it has grown old."""
        self._tries = [share * n for n in self._tries]
        self._hits = [share * n for n in self._hits]
        self._chances = []

    def chances(self) -> list[float]:
        """The chance of every slot."""
        if not self._chances:
            level = self._level()
            for i, (tries, hits) in enumerate(zip(self._tries, self._hits, strict=True)):
                expected = (
                    self.prior.chances()[i] if self.prior is not None else self.start[min(i, len(self.start) - 1)]
                )
                if len(self.start) == 1:
                    # A position follows the draft's general level, shaped as in the history.
                    expected = level if self.prior is None else expected * level / self.prior._level()
                self._chances.append(min(SURE, (hits + PRIOR_WEIGHT * expected) / (tries + PRIOR_WEIGHT)))
        return self._chances

    def _level(self) -> float:
        """The chance of any token, wherever it stands."""
        expected = self.start[0] if self.prior is None else self.prior._level()
        return (sum(self._hits) + PRIOR_WEIGHT * expected) / (sum(self._tries) + PRIOR_WEIGHT)
