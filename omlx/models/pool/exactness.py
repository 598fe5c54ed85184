"""Measuring the exactness of a model in memory, a pass a step, kept with its costs."""

from __future__ import annotations

from collections.abc import Iterator

from omlx.engine.device_errors import isolate
from omlx.engine.inspection.exactness_probe import measure_exactness
from omlx.engine.model import cache_maker
from omlx.engine.speculation.cost_model import CostModel
from omlx.errors import ModelError
from omlx.models.pool.load_weights import LoadedModel


def exactness_steps(
    model: str, target: LoadedModel, cost_model: CostModel, longest: int
) -> Iterator[None]:
    """Measure a model whose context is `longest` tokens. Requires the engine thread.

    Raises ModelError if it cannot be measured.
    """
    if target.stage is not None:
        raise ModelError("exact.stages", model=model)
    make_cache, vocab_size = cache_maker(target.model), target.facts.vocab_size
    with isolate() as outcome:
        measured = measure_exactness(target.model, make_cache, vocab_size, longest)
        cost_model.exactness = yield from measured
    if outcome.error is not None:
        detail = f"{type(outcome.error).__name__}: {outcome.error}"
        raise ModelError("exact.failed", model=model, detail=detail) from outcome.error
