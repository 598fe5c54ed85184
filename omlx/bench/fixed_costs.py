"""A cost model with fixed costs: those of an imagined machine, which no measurement changes.

Where speculation does not pay, `auto` rightly drafts nothing and nothing can be compared. On this
machine it pays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from omlx.engine.speculation.config import CONFIG
from omlx.engine.speculation.cost_model import PLAIN, CostModel, LatencyTable


class FixedLatencyTable(LatencyTable):
    """Passes cost what the table says, however long they take."""

    def learn(self, width: int, context: int, seconds: float) -> bool:
        return False


class FixedCostModel(CostModel):
    """A batch costs what a single row's pass over as many tokens does."""

    def plain_step(self, rows: int, context: int) -> float:
        return self.batch_pass(rows, PLAIN, context)

    def learn_batch(self, rows: int, width: int, context: int, seconds: float) -> None:
        return


def flat(width: int) -> float:
    """Return the seconds of a pass where reading the weights takes nearly all the time."""
    return 1.0 + 0.01 * width


def fixed_costs(
    pass_seconds: Callable[[int], float] = flat, draft: str = "draft", draft_seconds: float = 0.02
) -> CostModel:
    """Return costs in which a plain step takes 1 s and a pass over n rows `pass_seconds(n)`.

    A pass of the draft model of that name takes `draft_seconds`.
    """
    target = {PLAIN: 1.0}
    for width in range(1, 8 * CONFIG.widest_window + 1):
        target[width] = pass_seconds(width)
    return FixedCostModel(_fixed(target), {draft: _fixed({1: draft_seconds})})


def _fixed(seconds: Mapping[int, float]) -> LatencyTable:
    return FixedLatencyTable.from_json(
        [
            {"bucket": 0, "width": width, "seconds": [value] * CONFIG.samples}
            for width, value in seconds.items()
        ]
    )
