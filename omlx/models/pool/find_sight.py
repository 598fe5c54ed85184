"""How a model reads images, whether it is loaded or not."""

from __future__ import annotations

import asyncio

from omlx.errors import Reason
from omlx.models.eyes.sight import Sight, read_sight
from omlx.models.pool.pool import Pool
from omlx.models.pool.resident import ServedModel


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


def why_blind(served: ServedModel | None, files: Reason | None, *, vision: bool) -> Reason | None:
    """Return why a model does not read images; None if it does.

    `files` is what its files say (`read_blind_reason`), `vision` the setting.
    """
    if served is not None:
        sight = served.sight
        return None if sight.eye is not None else sight.off_reason or Reason("vision.off.text")
    if files is None and not vision:
        return Reason("vision.off.setting")
    return files
