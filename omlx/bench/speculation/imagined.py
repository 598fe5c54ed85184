"""Costs of an imagined machine: what passes take there is written down, and nothing that happens here changes it.

Where drafting does not pay, `auto` rightly drafts nothing, and there is nothing to see. On this machine it pays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from omlx.engine.speculation.cost_model import (
    PLAIN,
    SAMPLES,
    WIDEST_WINDOW,
    CostModel,
    LatencyTable,
)


class Listed(LatencyTable):
    """Passes cost what is listed, however long they take."""

    def learn(self, width: int, context: int, seconds: float) -> bool:
        return False


def flat(width: int) -> float:
    """Wide passes cost little more than narrow ones, as where reading the weights is what takes the time."""
    return 1.0 + 0.01 * width


def imagined(
    price: Callable[[int], float] = flat, draft: str = "draft", draft_price: float = 0.02
) -> CostModel:
    """A pass over n rows costs `price(n)`, a plain step 1, and a pass of the draft model `draft_price`."""
    target = {PLAIN: 1.0, **{width: price(width) for width in range(1, WIDEST_WINDOW + 1)}}
    return CostModel(_listed(target), {draft: _listed({1: draft_price})})


def _listed(prices: Mapping[int, float]) -> LatencyTable:
    return Listed.from_json(
        [{"bucket": 0, "width": w, "seconds": [price] * SAMPLES} for w, price in prices.items()]
    )
