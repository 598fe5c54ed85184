"""Acceptance rates, and the exploration budget that bounds what measuring them may cost.

An acceptance rate says how likely the next draft token is accepted if all before it were. For a
draft model it depends on the position in the draft, for a prompt lookup on the length of the match
so far. Each range of either is a *bin*. Counts decay. A request starts from what earlier requests
of the model saw. The budget's unit are plain steps, which a model's requests have in common where
seconds differ.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from omlx.engine.speculation.config import CONFIG

BINS: Final = 16
"""Bins per drafter. Deeper positions of a draft model's draft share the last one."""

COMMON_WEIGHT: Final = 2.0
"""Pseudo-count of rejections in the correction factor of `rates`."""

_MATCH_BIN: Final = [
    max(0, bisect_right(CONFIG.match_bins, length) - 1)
    for length in range(CONFIG.match_bins[-1] + 1)
]
"""The bin of a lookup's next token, by the length of its match so far."""


def bin_of(match: int, i: int) -> int:
    """Return the bin of token `i` of a draft. Each accepted token makes the match longer by one.

    `match` is the length of the match in tokens, 0 for a draft model.
    """
    if match:
        return _MATCH_BIN[min(match + i, len(_MATCH_BIN) - 1)]
    return min(i, BINS - 1)


@dataclass(slots=True)
class Acceptance:
    """Decaying counts by bin.

    `start` holds the expected rates before any count. `prior` is the model's history: its rates at
    the request's start replace `start`; it is updated with every draft. With `prior` None, this is
    the history itself.
    """

    start: tuple[float, ...]
    prior: Acceptance | None = None
    _expected: list[float] = field(init=False)
    _tries: list[float] = field(default_factory=lambda: [0.0] * BINS)
    _hits: list[float] = field(default_factory=lambda: [0.0] * BINS)
    _rates: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._expected = [*self.start, *self.start[-1:] * (BINS - len(self.start))]
        if self.prior is not None:
            self._expected = self.prior.rates()

    @property
    def known(self) -> bool:
        """Whether the drafter was tried often enough, in any request."""
        return sum((self.prior or self)._tries) >= CONFIG.prior_weight

    @property
    def poor(self) -> bool:
        """Whether a drafter's tokens are known to be nearly always wrong."""
        return self.known and self.rates()[0] < CONFIG.poor_rate

    @property
    def fair(self) -> bool:
        """Whether tokens of a drafter were accepted, and it is not poor."""
        return sum((self.prior or self)._hits) >= CONFIG.fair_tokens and not self.poor

    def learn(self, match: int, drafted: int, accepted: int) -> None:
        """Count a draft that was verified, or compared with the tokens sampled anyway.

        Tokens after the first rejected one are no evidence.
        """
        counted = [bin_of(match, i) for i in range(min(drafted, accepted + 1))]
        for acceptance in (self, self.prior) if self.prior is not None else (self,):
            acceptance._count(match, counted, accepted)

    def _count(self, match: int, counted: Sequence[int], accepted: int) -> None:
        """Count a token for each of the bins, of which the first are accepted."""
        decay = CONFIG.evidence_decay
        if self.prior is None:
            decay = 1.0 - (1.0 - decay) / 10
        # A draft model's deeper bins decay too, or one bad spell would close them for good.
        for index in set(counted) if match else range(BINS):
            self._tries[index] *= decay
            self._hits[index] *= decay
        for i, index in enumerate(counted):
            self._tries[index] += 1.0
            self._hits[index] += i < accepted
        self._rates = []

    def rates(self) -> list[float]:
        """Return the acceptance rate of every bin.

        One factor corrects all expected rates by how much more often than expected this request's
        tokens were rejected; each bin then follows its own counts as far as it has any.
        """
        if not self._rates:
            lowest, highest = CONFIG.rate_bounds
            weight = CONFIG.prior_weight
            rejected = sum(self._tries) - sum(self._hits)
            foreseen = sum(n * (1.0 - p) for n, p in zip(self._tries, self._expected, strict=True))
            factor = (rejected + COMMON_WEIGHT) / (foreseen + COMMON_WEIGHT)
            for tries, hits, expected in zip(self._tries, self._hits, self._expected, strict=True):
                expected = max(lowest, 1.0 - factor * (1.0 - expected))
                self._rates.append(min(highest, (hits + weight * expected) / (tries + weight)))
        return self._rates

    def reach(self, match: int, shortest: int, longest: int) -> list[float]:
        """Return the probability that at least i draft tokens are accepted, from i = 0.

        It ends at `longest`, or behind `shortest` where it falls below `min_reach`.
        """
        rates, reach = self.rates(), [1.0]
        for i in range(longest):
            reach.append(reach[-1] * rates[bin_of(match, i)])
            if reach[-1] < CONFIG.min_reach and i + 1 >= shortest:
                break
        return reach


@dataclass(slots=True)
class Savings:
    """Plain steps that a model's requests may lose: a share of their time, and saved time."""

    steps: float = CONFIG.first_savings

    def add(self, steps: float) -> None:
        self.steps = min(CONFIG.most_savings, self.steps + steps)


@dataclass(slots=True)
class ExplorationBudget:
    """Budget of a request in plain steps: `elapsed` so far, `lost` against plain decoding."""

    savings: Savings = field(default_factory=Savings)
    elapsed: float = 0.0
    lost: float = 0.0

    def may_spend(self, steps: float, *, once: bool = False, in_advance: bool = True) -> bool:
        """Return whether `steps` plain steps may be lost now.

        The model's savings bound what is lost `once` to learn something for all requests. Else a
        share of the request's time so far does too, and `in_advance` that of its next steps.
        """
        assumed = CONFIG.assumed_steps if in_advance else 0
        allowed = CONFIG.exploration_share * (self.elapsed + assumed)
        return steps <= self.savings.steps and (once or self.lost + steps <= allowed)

    def add_time(self, steps: float) -> None:
        self.elapsed += steps
        self.savings.add(CONFIG.exploration_share * steps)

    def add_loss(self, steps: float) -> None:
        """Count the plain steps that a round took more than plain decoding; negative: fewer."""
        self.lost = max(0.0, self.lost + steps)
        self.savings.add(-steps)
