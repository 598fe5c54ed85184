"""Measuring how exact a model is, while the server runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from omlx.engine.thread import EngineThread
from omlx.errors import BadRequest
from omlx.exactness import Exactness
from omlx.models.pool.pool import Pool

_END: Final = object()


@dataclass(frozen=True, slots=True)
class ExactnessService:
    """Compares wide passes of models with single steps, between the steps of running requests."""

    pool: Pool
    engine: EngineThread

    async def measure(self, name: str, passed: Callable[[], None] = lambda: None) -> Exactness:
        """Measure a model, which is loaded for it; `passed` is called after each pass.

        Raises BadRequest for an encoder, ModelError if it cannot be measured, and what loading
        raises.
        """
        from omlx.models.pool.load_weights import exactness_steps  # noqa: PLC0415 — see `import_mlx_lm`

        lease = await self.pool.lease(name)
        try:
            served = lease.served
            if not served.generates:
                raise BadRequest("exact.no_answers", param="model", model=served.id)
            resident = self.pool.residents.find(served.id)
            assert resident is not None
            target, cost_model = resident.weights[resident.entry.path], served.cost_model
            steps = exactness_steps(served.id, target, cost_model, served.context_length)
            while (
                await asyncio.wrap_future(self.engine.call(partial(next, steps, _END))) is not _END
            ):
                passed()
            assert cost_model.exactness is not None
            return cost_model.exactness
        finally:
            lease.release()
