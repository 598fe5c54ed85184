"""Exploration budget: the seconds that probes of an idle drafter may cost a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from omlx.engine.speculation.cost_model import CostModel

EXPLORATION_SHARE: Final = 0.01
"""Share of a request's time that may be lost to drafting that turns out not to pay."""

ASSUMED_STEPS: Final = 500
"""Plain steps whose share may be lost in advance. An answer of 1,000 tokens for which no draft
pays takes some 1.5 % longer, a longer one less."""


@dataclass(slots=True)
class ExplorationBudget:
    """`elapsed_s` are the request's seconds so far; `lost_s` those lost against plain decoding.

    A draft model that is not proven yet may spend the cost model's `exploration_budget_s` instead,
    if that is larger. It accrues 1 % of the measured time of all requests to the model.
    """

    cost_model: CostModel
    elapsed_s: float = 0.0
    lost_s: float = 0.0

    def steps_until(self, price: float, plain: float, *, proven: bool) -> int:
        """Return in how many plain steps (`plain` s) a probe of `price` s may begin."""
        accrued = 0.0 if proven else self.cost_model.exploration_budget_s
        allowed = EXPLORATION_SHARE * (self.elapsed_s + ASSUMED_STEPS * plain)
        missing = self.lost_s + price - max(accrued, allowed)
        if missing <= 0.0:
            return 0
        return 1 + int(missing / (EXPLORATION_SHARE * plain))

    def add_round(self, seconds: float, plain: float) -> None:
        """Count a round with a draft whose tokens would have taken `plain` seconds without one."""
        self.lost_s = max(0.0, self.lost_s + seconds - plain)

    def add_catch_up(self, seconds: float) -> None:
        """Subtract a round's drafting time, catch-up included, from the cost model's budget."""
        self.cost_model.exploration_budget_s = max(
            0.0, self.cost_model.exploration_budget_s - seconds
        )

    def add_time(self, seconds: float) -> None:
        """Count a step that was measured: a share of it may be spent."""
        self.elapsed_s += seconds
        self.cost_model.exploration_budget_s += EXPLORATION_SHARE * seconds
