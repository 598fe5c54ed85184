"""What a perfect lookup could have done with an answer: the bound that a real one is measured against.

The oracle sees only what the engine's lookup sees, the earlier places where the last three tokens stood, but knows
which of them goes on as the answer does, and how far. From the places it could copy from, it takes the rounds whose
passes cost least in sum:

    T(i) = min over n <= reach(i) of  cost(n) + T(i + n + 1)

Pure Python: no model, no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from omlx.draft_length import MAX_DRAFT_LENGTH
from omlx.engine.speculation.drafters.ngram import NgramIndex


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """Seconds of a round by the width of its pass, whose tokens are all accepted, and of a plain step. Between
    measured widths it is a straight line; behind the last one too, which never falls."""

    plain: float
    widths: tuple[int, ...]
    seconds: tuple[float, ...]

    def verify(self, width: int) -> float:
        """A round that reads `width` tokens."""
        points = [(1, self.plain), *zip(self.widths, self.seconds, strict=True)]
        i = min(max(bisect_left([w for w, _ in points], width), 1), len(points) - 1)
        (low, below), (high, above) = points[i - 1], points[i]
        slope = (above - below) / (high - low)
        return below + (slope if width <= high else max(0.0, slope)) * (width - low)


@dataclass(frozen=True, slots=True)
class Bound:
    """Of `tokens`, a perfect lookup could propose `copied`. `plain_s` and `oracle_s`: what they take without and
    with it, in `rounds` passes."""

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
    def share(self) -> float:
        return self.copied / self.tokens if self.tokens else 0.0

    @property
    def speedup(self) -> float:
        return self.plain_s / self.oracle_s if self.oracle_s else 1.0


def bound(prompt: Seq[int], answer: Seq[int], costs: RoundCosts, given: int = 1) -> Bound:
    """The bound of one answer. Its first `given` tokens are there when the clock starts; at least one."""
    reaches = reach(prompt, answer)
    size = len(answer)
    best = [0.0] * (size + 1)
    taken = [0] * (size + 1)
    price = [costs.plain, *(costs.verify(1 + n) for n in range(1, MAX_DRAFT_LENGTH + 1))]
    for i in range(size - 1, given - 1, -1):
        best[i], taken[i] = min(
            (price[n] + best[min(size, i + n + 1)], n)
            for n in range(min(reaches[i], size - i - 1) + 1)
        )
    rounds, i = 0, given
    while i < size:
        rounds += 1
        i += taken[i] + 1
    tokens = max(0, size - given)
    return Bound(
        tokens, copied(reaches, given), rounds, tokens * costs.plain, best[min(given, size)]
    )


def reach(prompt: Seq[int], answer: Seq[int]) -> list[int]:
    """For every place of the answer, how many of its next tokens some earlier place goes on with."""
    index = NgramIndex(list(prompt))
    known = [*prompt, *answer]
    reaches = []
    for here in range(len(prompt), len(known)):
        reaches.append(max((_agree(known, at, here) for at in index.places()), default=0))
        index.extend([known[here]])
    return reaches


def copied(reaches: Seq[int], given: int = 1) -> int:
    """How many tokens are proposed when every round behind the `given` tokens proposes all it can."""
    found, i = 0, given
    while i < len(reaches):
        n = min(reaches[i], len(reaches) - i)
        found += n
        i += n + 1
    return found


def allowed(share: float, costs: RoundCosts) -> float:
    """Times plain decoding that the best window comes to if each of its tokens is right with this chance: what a share
    of proposals allows wherever the others fall. Runs that are known beforehand allow more."""
    windows = (width - 1 for width in costs.widths)
    return max(_expected(share, k) * costs.plain / costs.verify(1 + k) for k in (0, *windows))


def break_even(k: int, seconds: float, plain: float) -> float | None:
    """The chance of a drafted token to be accepted at which a round of k drafted tokens that takes `seconds` is as
    fast as plain steps; None where even certainty would not do."""
    wanted = seconds / plain
    if wanted > k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if _expected(middle, k) < wanted:
            low = middle
        else:
            high = middle
    return high


def _expected(chance: float, k: int) -> float:
    """Tokens that a round over k drafted ones brings."""
    return sum(chance**i for i in range(k + 1))


def _agree(known: Seq[int], at: int, here: int) -> int:
    n = 0
    while n < MAX_DRAFT_LENGTH and here + n < len(known) and known[at + n] == known[here + n]:
        n += 1
    return n
