"""A trial's configuration as settings of a model, or in its package; and its exact undo."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omlx.errors import BadRequest, ConfigError, Conflict
from omlx.models.package.package import DeclaredNgram, DeclaredStrategy
from omlx.models.package.write_package import declare_draft, write_package
from omlx.models.pool.pool import Pool
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.schema import Scope, Value
from omlx.trial.configurations import PLAIN, TrialConfiguration

from ..settings.view import applied


@dataclass(frozen=True, slots=True)
class Applied:
    """`before` are the values stored before (None: none), `revision` the settings' one after."""

    configuration: TrialConfiguration
    before: Mapping[str, Value]
    revision: str


@dataclass(frozen=True, slots=True)
class AppliedSettings:
    """`takes` says when each setting takes effect; `revision` is the new one of the settings."""

    takes: Mapping[str, str]
    revision: str


class TrialApplier:
    """Applies configurations. Each can be undone until the model's settings change otherwise."""

    def __init__(self, pool: Pool, configuration: LiveConfiguration) -> None:
        self._pool = pool
        self._settings = configuration
        self._applied: dict[str, Applied] = {}

    def applied(self, model: str) -> Applied | None:
        """Return what can be undone."""
        return self._applied.get(model)

    async def apply(self, model: str, configuration: TrialConfiguration) -> AppliedSettings:
        """Store a configuration as the model's settings. Raises BadRequest, Outdated."""
        revision = await self._revision(model)
        layer = self._settings.current.stored.layer(model)
        before: Mapping[str, Value] = {
            name: layer.values.get(name) for name in configuration.changes
        }
        earlier = self._applied.get(model)
        if earlier is not None and earlier.revision == revision:
            before = earlier.before  # two in a row are undone at once
        await self._patch(model, configuration.changes, revision)
        self._applied[model] = Applied(configuration, before, await self._revision(model))
        return await self._reconfigured(model, configuration.changes)

    async def undo(self, model: str) -> AppliedSettings:
        """Restore the values stored before. Raises Conflict if there are none, Outdated."""
        applied = self._applied.get(model)
        if applied is None:
            raise Conflict("trial.nothing_applied", model=model)
        await self._patch(model, applied.before, applied.revision)
        del self._applied[model]
        return await self._reconfigured(model, applied.before)

    async def write(self, model: str, configuration: TrialConfiguration) -> tuple[Path, str]:
        """Declare a configuration as the default of the model's package; return its file and name.

        Raises ModelError if the draft does not fit or the file cannot be written, BadRequest for
        plain decoding, which a package cannot declare.
        """
        entry = self._pool.resolve(model)
        if configuration == PLAIN:
            raise BadRequest("trial.not_in_package", param="setup")
        declared: DeclaredStrategy = DeclaredNgram(None, None)
        name = "ngram"
        if configuration.draft is not None:
            draft = await asyncio.to_thread(
                declare_draft, entry, configuration.draft, None, self._pool.registry
            )
            declared, name = draft, draft.draft.repository.rpartition("/")[2].lower()
        path = await asyncio.to_thread(write_package, entry.path, declared, name)
        await self._pool.reconfigure()
        return path, name

    async def _patch(self, model: str, changes: Mapping[str, Value], revision: str) -> None:
        try:
            await asyncio.to_thread(self._settings.patch, changes, model, expected=revision)
        except ConfigError as error:
            raise BadRequest(error.code, param=error.param, **error.params) from error

    async def _revision(self, model: str) -> str:
        return (await asyncio.to_thread(self._settings.refresh)).stored.revision(model)

    async def _reconfigured(self, model: str, changes: Mapping[str, Value]) -> AppliedSettings:
        """Have the pool take up the changes."""
        reloading = [loading.entry.id for loading in await self._pool.reconfigure()]
        busy = model in reloading and self._pool.status(model).active > 0
        resolution = self._settings.current.resolve(model)
        takes = applied(changes, resolution, Scope.MODEL, busy=busy)
        return AppliedSettings(takes, await self._revision(model))
