"""The oracle of prompt lookup: the best that it could have done with an answer, an upper bound.

It sees only what the engine's lookup sees, the earlier places of the last three tokens, but knows
at which of them the text continues like the answer, and how far. Of the rounds it could draft it
takes those whose passes cost least in sum:

    T(i) = min over n <= reach(i) of  cost(n) + T(i + n + 1)

It needs no model and no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from lab.bench.cases import Trial
from lab.bench.console import Json
from lab.bench.series import Series
from omlx.draft_length import MAX_DRAFT_LENGTH
from omlx.engine.speculation.drafters.ngram import NgramIndex


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """Seconds of a plain step, and of a round by the width of its pass, all of it accepted.

    Interpolated linearly between measured widths, and extrapolated without falling.
    """

    plain: float
    widths: tuple[int, ...]
    seconds: tuple[float, ...]

    def verify(self, width: int) -> float:
        """Return the seconds of a round that reads `width` tokens."""
        points = [(1, self.plain), *zip(self.widths, self.seconds, strict=True)]
        i = bisect_left([measured for measured, _ in points], width)
        i = min(max(i, 1), len(points) - 1)
        (low, below), (high, above) = points[i - 1], points[i]
        slope = (above - below) / (high - low)
        if width > high:
            slope = max(0.0, slope)
        return below + slope * (width - low)


@dataclass(frozen=True, slots=True)
class Bound:
    """Of `tokens`, an oracle could propose `copied`; it takes `oracle_s` seconds in `rounds`."""

    tokens: int = 0
    copied: int = 0
    rounds: int = 0
    plain_s: float = 0.0
    oracle_s: float = 0.0

    def __add__(self, other: Bound) -> Bound:
        return Bound(
            self.tokens + other.tokens,
            self.copied + other.copied,
            self.rounds + other.rounds,
            self.plain_s + other.plain_s,
            self.oracle_s + other.oracle_s,
        )

    @property
    def coverage(self) -> float:
        """Proposed / all tokens."""
        return self.copied / self.tokens if self.tokens else 0.0

    @property
    def speedup(self) -> float:
        return self.plain_s / self.oracle_s if self.oracle_s else 1.0


def bound(prompt: Sequence[int], answer: Sequence[int], costs: RoundCosts, given: int = 1) -> Bound:
    """Return the bound of one answer, whose first `given` tokens (at least one) are not timed."""
    reaches = reach(prompt, answer)
    size = len(answer)
    prices = [costs.plain, *(costs.verify(1 + n) for n in range(1, MAX_DRAFT_LENGTH + 1))]
    best = [0.0] * (size + 1)  # seconds from each place to the end
    taken = [0] * (size + 1)  # draft length of the best round at each place
    for i in range(size - 1, given - 1, -1):
        lengths = range(min(reaches[i], size - i - 1) + 1)
        best[i], taken[i] = min((prices[n] + best[min(size, i + n + 1)], n) for n in lengths)
    rounds, i = 0, given
    while i < size:
        rounds += 1
        i += taken[i] + 1
    tokens = max(0, size - given)
    return Bound(
        tokens, copied(reaches, given), rounds, tokens * costs.plain, best[min(given, size)]
    )


def reach(prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
    """Return for every place of the answer how many next tokens some earlier place predicts."""
    index = NgramIndex(list(prompt))
    known = [*prompt, *answer]
    reaches = []
    for end in range(len(prompt), len(known)):
        lengths = (_agreement(known, place, end) for place in index.positions())
        reaches.append(max(lengths, default=0))
        index.extend([known[end]])
    return reaches


def copied(reaches: Sequence[int], given: int = 1) -> int:
    """Return the tokens proposed if every round after the `given` tokens proposes all it can."""
    proposed, i = 0, given
    while i < len(reaches):
        n = min(reaches[i], len(reaches) - i)
        proposed += n
        i += n + 1
    return proposed


def speedup_at(acceptance: float, costs: RoundCosts) -> float:
    """Return the speed-up of the best draft length if each token has this acceptance probability.

    Rounds of a draft length that is known beforehand allow more.
    """
    lengths = (0, *(width - 1 for width in costs.widths))
    return max(_tokens(acceptance, k) * costs.plain / costs.verify(1 + k) for k in lengths)


def break_even(k: int, seconds: float, plain: float) -> float | None:
    """Return the acceptance probability at which a round of k draft tokens pays.

    A round takes `seconds`, a plain step `plain`. None where even certainty would not do.
    """
    wanted = seconds / plain
    if wanted > k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if _tokens(middle, k) < wanted:
            low = middle
        else:
            high = middle
    return high


def _tokens(acceptance: float, k: int) -> float:
    """Return the expected tokens of a round with k draft tokens."""
    return sum(acceptance**i for i in range(k + 1))


def _agreement(known: Sequence[int], place: int, end: int) -> int:
    """Return how many tokens from `place` on equal those from `end` on, up to the longest draft."""
    n = 0
    while n < MAX_DRAFT_LENGTH and end + n < len(known) and known[place + n] == known[end + n]:
        n += 1
    return n


@dataclass(frozen=True, slots=True)
class LookupBound:
    """The bound of all answers together, and the speed-up as a share of the oracle's, by trial.

    `allowed` is the speed-up at which the oracle's coverage, taken as an acceptance probability,
    would arrive.
    """

    bound: Bound
    reached: Series
    allowed: float

    def to_json(self) -> Json:
        return {
            **asdict(self.bound),
            "share": self.bound.coverage,
            "allowed": self.allowed,
            "speedup": self.bound.speedup,
            "reached": self.reached.to_json(),
        }


def lookup_bound(trials: Sequence[Trial], gain: Series, costs: RoundCosts) -> LookupBound:
    """Return the bound of the timed part of these trials' answers; `gain` by trial."""
    bounds = [_trial_bound(trial, costs) for trial in trials]
    whole = sum(bounds, Bound())
    oracle = Series(tuple(bound.speedup for bound in bounds))
    return LookupBound(whole, gain.over(oracle), speedup_at(whole.coverage, costs))


def _trial_bound(trial: Trial, costs: RoundCosts) -> Bound:
    whole = Bound()
    for group, ours, theirs in zip(trial.groups, trial.ours, trial.theirs, strict=True):
        given = len(ours.sample.tokens[0]) - ours.sample.counted  # before the clock started
        for request, answer in zip(group, theirs.sample.tokens, strict=True):
            whole += bound(request.tokens, answer, costs, given)
    return whole
