"""Rows that share a batch draft together: one verification width for all of them. Pure Python.

The pass over a batch reads rows × width tokens, whatever part of them is padding. So the only joint
choice is the width; each row then drafts what fits, up to its own proposal.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final

from omlx.engine.speculation.config import CONFIG
from omlx.engine.speculation.decide import Decision, RowForecast, decide
from omlx.engine.speculation.proposal import Proposal

LIKELY: Final = 0.5
"""In models with recurrent layers, drafts end where acceptance is less likely: after a rejection
the row's accepted tokens are computed again, and widen the next pass of all rows."""


@dataclass(frozen=True, slots=True)
class Member:
    """One row of a batch. `forecast` is that of its `proposal`, which may be None.

    A draft shorter than `shortest` tokens is not made. With `fixed`, the whole of the proposal is
    drafted whatever it costs, and others draft up to its width.
    """

    forecast: RowForecast
    proposal: Proposal | None = None
    shortest: int = 1
    fixed: bool = False

    def draft_length(self, width: int, *, recurrent: bool) -> int:
        """Return how many tokens to draft in a window of this width."""
        k = self.forecast.draft_length(width)
        tokens = self.forecast.tokens
        while recurrent and not self.fixed and k and tokens[k] - tokens[k - 1] < LIKELY:
            k -= 1
        return k if k >= self.shortest else 0


def choose_width(
    members: Seq[Member], pass_seconds: Callable[[int], float], plain_s: float
) -> Decision:
    """Return the width of the next pass over these rows.

    `pass_seconds(width)` is the time of their pass, `plain_s` that of a plain step.
    """
    ends = [m.forecast.pending + len(m.forecast.tokens) - 1 for m in members]
    fixed = [end for member, end in zip(members, ends, strict=True) if member.fixed]
    least = max([*fixed, *(m.forecast.pending for m in members)])
    if fixed:
        return Decision(least, 1.0, pays=True)
    longest = max(ends)
    widths = [least, *(width for width in CONFIG.widths if least < width < longest), longest]
    return decide([m.forecast for m in members], widths, pass_seconds, plain_s)
