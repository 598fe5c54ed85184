"""Acceptance rate: how likely the next draft token is accepted if all before it were.

For a draft model it depends on the position in the draft, for a prompt lookup on the length of the
match so far. Each range of either is a *bin*. Counts decay, so that a change of text shows within
some twenty drafts. A request starts from what earlier requests of the model saw.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final

DECAY: Final = 0.97
"""Weight of earlier counts after each draft. The model's history decays ten times slower."""

PRIOR_WEIGHT: Final = 4.0
"""Tokens that the expected rate of a bin counts for beside the bin's own counts."""

COMMON_WEIGHT: Final = 2.0
"""Pseudo-count of rejections in the correction factor of `rates`."""

PROVEN: Final = 8.0
"""Tokens after which a drafter's acceptance rate counts as known."""

POOR: Final = 0.2
"""A draft model below this rate never pays: its pass and a wider verification cost more."""

MATCH_BINS: Final = (3, 4, 5, 6, 7, 8, 9, 12, 17, 33)
"""Tokens of a match at which bins begin. Short matches have a bin each: in records of one shape
it is always the same token that changes."""

MATCH_RATES: Final = (0.5, 0.65, 0.75, 0.8, 0.8, 0.8, 0.85, 0.85, 0.9, 0.95)
"""Expected acceptance rate of each bin of a match while nothing is measured."""

DRAFT_MODEL_RATES: Final = (0.6,)
"""Expected acceptance rate of a draft model at every position while nothing is measured."""

BINS: Final = 16
"""Bins per drafter. Deeper positions of a draft model's draft share the last one."""

MAX_RATE: Final = 0.998
MIN_RATE: Final = 0.02
"""Bounds of the rates: no number of tokens makes the next one certain."""


def bin_of(match: int, i: int) -> int:
    """Return the bin of token `i` of a draft. Each accepted token makes the match longer by one.

    `match` is the length of the match in tokens, 0 for a draft model.
    """
    if match:
        return bisect_right(MATCH_BINS, max(match + i, MATCH_BINS[0])) - 1
    return min(i, BINS - 1)


@dataclass(slots=True)
class Acceptance:
    """Decaying counts by bin.

    `start` holds the expected rates before any count. `prior` is the model's history: its rates at
    the request's start, or at the last `fade`, replace `start`; it is updated with every draft.
    With `prior` None, this is the history itself.
    """

    start: tuple[float, ...] = DRAFT_MODEL_RATES
    prior: Acceptance | None = None
    _expected: list[float] = field(init=False)
    _tries: list[float] = field(default_factory=lambda: [0.0] * BINS)
    _hits: list[float] = field(default_factory=lambda: [0.0] * BINS)
    _rates: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._expected = self._expectation()

    @property
    def proven(self) -> bool:
        """Whether the rates rest on more than their starting values."""
        return sum((self.prior or self)._tries) >= PROVEN

    @property
    def poor(self) -> bool:
        """Whether a draft model's tokens are known to be nearly always wrong."""
        return self.proven and self.rates()[0] < POOR

    def learn(self, match: int, drafted: int, accepted: int) -> None:
        """Count a draft that was verified, or compared with the tokens that were sampled anyway.

        Tokens after the first rejected one are no evidence.
        """
        decay = DECAY if self.prior is not None else 1.0 - (1.0 - DECAY) / 10
        counted = [bin_of(match, i) for i in range(min(drafted, accepted + 1))]
        # A draft model's deeper bins decay too, or one bad spell would close them for good.
        for index in set(counted) if match else range(BINS):
            self._tries[index] *= decay
            self._hits[index] *= decay
        for i, index in enumerate(counted):
            self._tries[index] += 1.0
            self._hits[index] += i < accepted
        self._rates = []
        if self.prior is not None:
            self.prior.learn(match, drafted, accepted)

    def fade(self, share: float) -> None:
        """Keep only `share` of the request's old counts; the history takes their place."""
        self._expected = self._expectation()
        self._tries = [share * n for n in self._tries]
        self._hits = [share * n for n in self._hits]
        self._rates = []

    def rates(self) -> list[float]:
        """Return the acceptance rate of every bin.

        One factor corrects all expected rates by how much more often than expected this request's
        tokens were rejected; each bin then follows its own counts as far as it has any.
        """
        if not self._rates:
            rejected = sum(self._tries) - sum(self._hits)
            foreseen = sum(n * (1.0 - p) for n, p in zip(self._tries, self._expected, strict=True))
            factor = (rejected + COMMON_WEIGHT) / (foreseen + COMMON_WEIGHT)
            for tries, hits, expected in zip(self._tries, self._hits, self._expected, strict=True):
                expected = max(MIN_RATE, 1.0 - factor * (1.0 - expected))
                rate = (hits + PRIOR_WEIGHT * expected) / (tries + PRIOR_WEIGHT)
                self._rates.append(min(MAX_RATE, rate))
        return self._rates

    def _expectation(self) -> list[float]:
        """Return the rates without this request's counts."""
        if self.prior is not None:
            return self.prior.rates()
        return [*self.start, *self.start[-1:] * (BINS - len(self.start))]
