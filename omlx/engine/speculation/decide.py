"""Decision: the draft with the largest throughput. Pure: no state, no clock, no mlx.

A pass reads a rectangle of rows × width tokens; a row alone is a rectangle of one. Of each row it
reads the pending tokens, then as many draft tokens as the width leaves, then padding. All rows take
the time of one pass, so the only joint choice is its width; what a row adds is a `RowForecast`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from omlx.engine.speculation.config import CONFIG


@dataclass(frozen=True, slots=True)
class RowForecast:
    """One row's draft at every length k.

    `tokens[k]` are expected to be committed. `seconds[k]` are added to those of the pass: drafting,
    catch-up, and what a rejection costs the next pass. Drafts have at least `shortest` tokens; if
    `fixed`, all of them, whatever it costs. A row without a proposal has k = 0 alone.
    """

    pending: int
    tokens: Sequence[float] = (1.0,)
    seconds: Sequence[float] = (0.0,)
    shortest: int = 1
    fixed: bool = False

    @property
    def end(self) -> int:
        """The width of the window with the longest draft."""
        return self.pending + len(self.tokens) - 1

    def draft_length(self, width: int, rate: float = 0.0) -> int:
        """Return how many tokens to draft in a window of this width: as many as fit, or fewer where
        a second is worth `rate` tokens and drafting them takes longer than they bring.
        """
        k = min(width - self.pending, len(self.tokens) - 1)
        if k < self.shortest:
            return 0
        if self.fixed or rate * self.seconds[k] == 0.0:
            return k
        lengths: list[int] = [0, *range(self.shortest, k + 1)]
        return max(lengths, key=lambda n: self.tokens[n] - rate * self.seconds[n])


def certain(
    pending: int, longest: int, draft_s: float = 0.0, *, fixed: bool = False
) -> RowForecast:
    """Return the forecast of drafts accepted as a whole, `draft_s` seconds a token."""
    lengths = range(longest + 1)
    return RowForecast(pending, range(1, longest + 2), [k * draft_s for k in lengths], fixed=fixed)


class Decision(NamedTuple):
    """A verification width, in tokens, its speed-up over plain decoding, and whether it `pays`.

    `rate`: the tokens that a second is worth where rows share the pass, for `draft_length`.
    """

    width: int
    speedup: float
    pays: bool
    rate: float = 0.0


def decide(
    rows: Sequence[RowForecast], pass_seconds: Callable[[int], float], plain_s: float
) -> Decision:
    """Return the width at which these rows commit most tokens per second.

    `pass_seconds(width)` prices the rectangle, `plain_s` a plain step of all its rows: 0 while that
    is not measured, and nothing pays. A round counts as `plain_s` at least: it would seem shorter
    where plain steps were measured on a busy machine, and drafts that are never right would pay.
    """
    pending = max([row.pending for row in rows])
    fixed = [row.end for row in rows if row.fixed]
    if fixed:
        return Decision(max(pending, *fixed), 1.0, pays=True)
    if plain_s <= 0.0:
        return Decision(pending, 0.0, pays=False)
    # Pending tokens have to be read with or without a draft, which is charged for its own only.
    backlog_s = pass_seconds(pending) - plain_s if pending > 1 else 0.0
    # A row that drafts slowly delays all: worth it at the rate of plain steps, then at the best.
    shared = len(rows) > 1 and any(row.seconds[-1] for row in rows)
    rate, best_width, best_throughput = 0.0, pending, 0.0
    for _ in range(2 if shared else 1):
        rate = max(best_throughput, len(rows) / plain_s) if shared else 0.0
        best_width, best_throughput = pending, 0.0
        for width in _widths(rows, pending):
            tokens, seconds = 0.0, pass_seconds(width) - backlog_s
            for row in rows:
                k = row.draft_length(width, rate)
                tokens += row.tokens[k]
                seconds += row.seconds[k]
            throughput = tokens / max(seconds, plain_s)
            if throughput > best_throughput * (1.0 + CONFIG.tie_margin):
                best_width, best_throughput = width, throughput
    speedup = best_throughput * plain_s / len(rows)
    return Decision(best_width, speedup, speedup >= CONFIG.min_speedup, rate)


def _widths(rows: Sequence[RowForecast], pending: int) -> list[int]:
    """Return the widths to compare, ascending: from the shortest draft to the longest."""
    shortest = [row.pending + row.shortest for row in rows if len(row.tokens) > 1]
    first, last = max(pending, min(shortest, default=pending)), max([row.end for row in rows])
    return [first, *[width for width in CONFIG.widths if first < width < last], max(first, last)]


@dataclass(frozen=True, slots=True)
class Pass:
    """The next pass over `rows` rows, of which the longest has `context` tokens.

    `seconds` and `plain_s` as in `decide`. `sharing` counts the rows that could share the passes of
    a draft model, by its name.
    """

    rows: int
    context: int
    seconds: Callable[[int], float]
    plain_s: float
    sharing: Counter[str] = field(default_factory=Counter)

    def decide(self, rows: Sequence[RowForecast]) -> Decision:
        return decide(rows, self.seconds, self.plain_s)
