"""How a model reads images, whether it is loaded or not."""

from __future__ import annotations

import asyncio

from omlx.errors import Reason
from omlx.models.eyes.sight import Sight, read_sight
from omlx.models.pool.pool import Pool


async def find_sight(pool: Pool, model: str) -> Sight:
    """Return the sight of a model; of one that is not loaded without its tower.

    Raises as `Pool.tokenizer`; reads no weights.
    """
    entry, tokenizer = pool.resolve(model), await pool.tokenizer(model)
    resident = pool.residents.find(entry.id)
    if resident is not None:
        return resident.served.sight
    if not pool.speculation(model).settings.vision:
        return Sight(off_reason=Reason("vision.off.setting"))
    return await asyncio.to_thread(read_sight, entry.path, tokenizer)
