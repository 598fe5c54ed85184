"""Which draft to make: the one with the largest throughput. Pure: no state, no clock, no mlx.

A pass reads a rectangle of rows × width tokens; a single row is a rectangle of one. Of each row it
reads the pending tokens, then as many draft tokens as the width leaves, then padding. The pass
takes one time for all; what a row adds to it is a `RowForecast`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final, NamedTuple

from omlx.engine.speculation.config import CONFIG

MIN_COST: Final = 0.5
"""Lower bound of a round's cost in plain steps. Kernels are tiled, so the pass over pending tokens
alone may cost more than one with a draft behind them."""


@dataclass(frozen=True, slots=True)
class RowForecast:
    """One row's draft at every length k.

    `tokens[k]` are expected to be committed. `seconds[k]` are added to those of the pass: drafting,
    catch-up, and what a rejection costs the next pass. A row without a proposal has k = 0 alone.
    """

    pending: int
    tokens: Seq[float] = (1.0,)
    seconds: Seq[float] = (0.0,)

    def draft_length(self, width: int) -> int:
        """Return how many draft tokens fit into a window of this width."""
        return max(0, min(width - self.pending, len(self.tokens) - 1))


class Decision(NamedTuple):
    """A verification width, in tokens, and its speed-up over plain decoding; `pays` if it is to be
    used."""

    width: int
    speedup: float
    pays: bool


def decide(
    rows: Seq[RowForecast],
    widths: Iterable[int],
    pass_seconds: Callable[[int], float],
    plain_s: float,
) -> Decision:
    """Return the ascending width at which these rows commit most tokens per second.

    `pass_seconds(width)` prices the rectangle, `plain_s` a plain step of all its rows. A row with
    more than one pending token has to read them anyway, with or without a draft: that time is not
    charged to the draft.
    """
    pending = max(row.pending for row in rows)
    backlog_s = pass_seconds(pending) - plain_s if pending > 1 else 0.0
    width, best = pending, 0.0
    for candidate in widths:
        tokens, seconds = 0.0, pass_seconds(candidate) - backlog_s
        for row in rows:
            k = row.draft_length(candidate)
            tokens += row.tokens[k]
            seconds += row.seconds[k]
        throughput = tokens / max(seconds, MIN_COST * plain_s)
        if throughput > best * (1.0 + CONFIG.tie_margin):
            width, best = candidate, throughput
    speedup = best * plain_s / len(rows)
    return Decision(width, speedup, speedup >= CONFIG.min_speedup)
