"""Taking up what a trial recommends, as settings of the model or in its package; and taking it back, exactly."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from omlx.errors import BadRequest, ConfigError, Conflict
from omlx.models.package.package import Declared, Ngram
from omlx.models.package.write_package import declare_draft, write_package
from omlx.models.pool.pool import Pool
from omlx.models.pool.resident import LoadJob
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.layer import Source
from omlx.settings.schema import Value
from omlx.trial.configurations import TrialConfiguration

from .view import Json, applied_view


@dataclass(frozen=True, slots=True)
class Applied:
    """What was taken up, what was stored before (None: nothing), and the revision that came of it."""

    setup: TrialConfiguration
    before: Mapping[str, Value]
    revision: str


class Applying:
    """What has been applied in this run can be undone, until somebody changes the model's settings otherwise."""

    def __init__(self, pool: Pool, configuration: LiveConfiguration) -> None:
        self._pool = pool
        self._live = configuration
        self._applied: dict[str, Applied] = {}

    def of(self, model: str) -> Applied | None:
        """What could be undone."""
        return self._applied.get(model)

    async def apply(self, model: str, setup: TrialConfiguration) -> Json:
        """Store it for the model. `takes` tells of each setting when it takes effect, `revision` is that of the model's
        settings now. Raises BadRequest, Outdated."""
        revision = await self._revision(model)
        layer = self._live.current.stored.layer(model)
        before: Mapping[str, Value] = {name: layer.values.get(name) for name in setup.changes}
        earlier = self._applied.get(model)
        if earlier is not None and earlier.revision == revision:
            before = earlier.before  # undoing the second one leads back to where both began
        await self._patch(model, setup.changes, revision)
        self._applied[model] = Applied(setup, before, await self._revision(model))
        return await self._taken_up(model, setup.changes)

    async def undo(self, model: str) -> Json:
        """Store again what was stored before. Raises Conflict if nothing was applied, Outdated if it has changed."""
        applied = self._applied.get(model)
        if applied is None:
            raise Conflict("trial.nothing_applied", model=model)
        await self._patch(model, applied.before, applied.revision)
        del self._applied[model]
        return await self._taken_up(model, applied.before)

    async def write(self, model: str, setup: TrialConfiguration) -> Json:
        """Make it the default of the model's package. Raises ModelError if the draft does not fit or the file cannot be
        written, BadRequest for what a package cannot say."""
        entry = self._pool.resolve(model)
        if setup.strategy == "off":
            raise BadRequest("trial.not_in_package", param="setup")
        declared: Declared = Ngram(None, None)
        name = "ngram"
        if setup.draft is not None:
            draft = await asyncio.to_thread(
                declare_draft, entry, setup.draft, None, self._pool.registry
            )
            declared, name = draft, draft.draft.repository.rpartition("/")[2].lower()
        path = await asyncio.to_thread(write_package, entry.path, declared, name)
        await self._pool.reconfigure()
        return {"file": str(path), "name": name}

    async def _patch(self, model: str, changes: Mapping[str, Value], revision: str) -> None:
        try:
            await asyncio.to_thread(self._live.patch, changes, model, expected=revision)
        except ConfigError as error:
            raise BadRequest(error.code, param=error.param, **error.params) from error

    async def _revision(self, model: str) -> str:
        return (await asyncio.to_thread(self._live.refresh)).stored.revision(model)

    async def _taken_up(self, model: str, names: Mapping[str, Value]) -> Json:
        changes: list[LoadJob] = await self._pool.reconfigure()
        waits = any(
            change.entry.id == model and self._pool.status(model).active for change in changes
        )
        resolution = self._live.current.resolve(model)
        takes = applied_view(names, resolution, Source.MODEL, waits=waits)
        return {"takes": dict(takes), "revision": await self._revision(model)}
