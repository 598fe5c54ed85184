"""Exploration budget: the seconds that a request may lose to drafting that does not pay."""

from __future__ import annotations

from dataclasses import dataclass

from omlx.engine.speculation.config import CONFIG


@dataclass(slots=True)
class ExplorationBudget:
    """`elapsed_s` are the request's seconds so far, `lost_s` those lost against plain decoding."""

    elapsed_s: float = 0.0
    lost_s: float = 0.0

    def may_spend(self, cost: float, plain: float, *, in_advance: bool = True) -> bool:
        """Return whether `cost` seconds may be lost now; `plain` are those of a plain step.

        A share of the time so far may be lost, and `in_advance` that of the next steps too.
        """
        steps = CONFIG.assumed_steps if in_advance else 0
        allowed = CONFIG.exploration_share * (self.elapsed_s + steps * plain)
        return self.lost_s + cost <= allowed

    def add_round(self, seconds: float, plain: float) -> None:
        """Count a round with a draft whose tokens would have taken `plain` seconds without one."""
        self.lost_s = max(0.0, self.lost_s + seconds - plain)
