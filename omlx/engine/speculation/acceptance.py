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
COMMON_WEIGHT: Final = 2.0
"""Misses that it takes to believe that a text, or a draft model in it, misses more or less often than before."""

PROVEN: Final = 8.0
"""Tokens that were tried, before a drafter counts as known."""

POOR: Final = 0.2
"""A draft model right less often pays nowhere: a token in five is less than its pass and a row more take."""

MATCH_STEPS: Final = (3, 4, 5, 6, 7, 8, 9, 12, 17, 33)
MATCH_CHANCE: Final = (0.5, 0.65, 0.75, 0.8, 0.8, 0.8, 0.85, 0.85, 0.9, 0.95)
"""What a match of 3, 4, … 9-11, 12-16, 17-32, 33+ tokens is worth before anything is seen. Short ones are told apart to
the token: in records of one shape it is always the same token that changes."""

FIRST_CHANCE: Final = (0.6,)
"""The same for a draft model's tokens."""

SLOTS: Final = 16
SURE: Final = 0.998
HOPELESS: Final = 0.02


def slot(match: int, i: int) -> int:
    """Where token `i` of a draft is counted: an accepted token makes a match longer. `match` is 0 for a draft model."""
    return (
        bisect_right(MATCH_STEPS, max(match + i, MATCH_STEPS[0])) - 1
        if match
        else min(i, SLOTS - 1)
    )


@dataclass(slots=True)
class Acceptance:
    """Decayed counts by slot. `start` is the belief before any count; `prior` is the model's history, which takes its
    place as it stood when the request began or last faded, and learns along."""

    start: tuple[float, ...] = FIRST_CHANCE
    prior: Acceptance | None = None
    _expected: list[float] = field(init=False)
    _tries: list[float] = field(default_factory=lambda: [0.0] * SLOTS)
    _hits: list[float] = field(default_factory=lambda: [0.0] * SLOTS)
    _chances: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._expected = self._before()

    @property
    def proven(self) -> bool:
        """Whether the belief rests on more than its start."""
        return sum((self.prior or self)._tries) >= PROVEN

    @property
    def poor(self) -> bool:
        """Whether a draft model's tokens are known to be wrong nearly always, and so not soon worth another look."""
        return self.proven and self.chances()[0] < POOR

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
        """Keep only `share` of the evidence: it has grown old. The history knows of it, and takes its place."""
        self._expected = self._before()
        self._tries = [share * n for n in self._tries]
        self._hits = [share * n for n in self._hits]
        self._chances = []

    def chances(self) -> list[float]:
        """The chance of every slot. One factor says how much oftener than expected tokens are missed, wherever they
        stand; a slot then follows its own counts as far as it has any."""
        if not self._chances:
            missed = sum(self._tries) - sum(self._hits)
            foreseen = sum(n * (1.0 - p) for n, p in zip(self._tries, self._expected, strict=True))
            factor = (missed + COMMON_WEIGHT) / (foreseen + COMMON_WEIGHT)
            for tries, hits, expected in zip(self._tries, self._hits, self._expected, strict=True):
                expected = max(HOPELESS, 1.0 - factor * (1.0 - expected))
                self._chances.append(
                    min(SURE, (hits + PRIOR_WEIGHT * expected) / (tries + PRIOR_WEIGHT))
                )
        return self._chances

    def _before(self) -> list[float]:
        """What is believed without this request's counts."""
        start = [*self.start, *self.start[-1:] * (SLOTS - len(self.start))]
        return start if self.prior is None else self.prior.chances()
