"""Exploration budget: what a request, and all requests of a model, may lose to drafting that does
not pay. Unit: plain steps, which a model's requests have in common where seconds differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from omlx.engine.speculation.config import CONFIG


@dataclass(slots=True)
class Savings:
    """What a model's requests may lose: a share of their time, and what drafts saved of it."""

    steps: float = CONFIG.first_savings

    def add(self, steps: float) -> None:
        self.steps = min(CONFIG.most_savings, self.steps + steps)


@dataclass(slots=True)
class ExplorationBudget:
    """`elapsed` are the request's plain steps so far, `lost` those lost against plain decoding."""

    savings: Savings = field(default_factory=Savings)
    elapsed: float = 0.0
    lost: float = 0.0

    def may_spend(self, steps: float, *, once: bool = False, in_advance: bool = True) -> bool:
        """Return whether so many plain steps may be lost now.

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
        """Count what a round took longer than its tokens would have without a draft, or less."""
        self.lost = max(0.0, self.lost + steps)
        self.savings.add(-steps)
