"""How a model stands at a moment: what was found, where it is in memory, how it is drafted for, what came of that, what
is kept of its prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from omlx.errors import OmlxError
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.models.pool.resident import ModelStatus, ServedModel, State
from omlx.models.pool.speculation_config import SpeculationConfig
from omlx.records import PrefixStats, RequestStats
from omlx.server.services import Services


@dataclass(frozen=True, slots=True)
class Standing:
    """`speculative` is None where nothing can be configured: the model cannot be used, or its settings are broken.
    `recent` are its answers, the newest last; `prefixes` is None for a model that is not in memory."""

    entry: ModelEntry
    told: ModelStatus
    speculative: SpeculationConfig | None = None
    served: ServedModel | None = None
    recent: Sequence[RequestStats] = ()
    prefixes: PrefixStats | None = None

    @property
    def usable(self) -> bool:
        return self.entry.status is Status.USABLE


class Standings:
    def __init__(self, services: Services) -> None:
        self.pool = services.pool
        self._activity = services.activity
        self._engine = services.engine

    async def of(self, name: str) -> Standing:
        """Raises NotFound."""
        entry = self.pool.entry(name)
        speculative = await asyncio.to_thread(self._speculative, entry)
        return self._standing(entry, speculative)

    async def all(self) -> list[Standing]:
        """Of everything that was found, in that order."""
        return await self._each([self._trusted(entry) for entry in self.pool.registry.entries])

    async def here(self) -> list[Standing]:
        """Of the models that are in memory or on their way."""
        return await self._each(
            [each for each in self.pool.models if self.pool.status(each.id).state != State.UNLOADED]
        )

    async def _each(self, entries: Sequence[ModelEntry]) -> list[Standing]:
        configured = await asyncio.to_thread(
            lambda: [self._speculative(entry) for entry in entries]
        )
        return [
            self._standing(entry, each) for entry, each in zip(entries, configured, strict=True)
        ]

    def _trusted(self, entry: ModelEntry) -> ModelEntry:
        """A model that brings code along can be used where the settings trust it."""
        brings_code = entry.reason is not None and entry.reason.code == "model.remote_code"
        return self.pool.entry(entry.id) if brings_code else entry

    def _speculative(self, entry: ModelEntry) -> SpeculationConfig | None:
        if entry.status is not Status.USABLE:
            return None
        try:
            return self.pool.speculation(entry.id)
        except OmlxError:
            return None

    def _standing(self, entry: ModelEntry, speculative: SpeculationConfig | None) -> Standing:
        served = next((each for each in self.pool.loaded if each.id == entry.id), None)
        recent, prefixes = self._activity.recent(entry.id), self._engine.prefix_of(entry.id)
        return Standing(entry, self.pool.status(entry.id), speculative, served, recent, prefixes)
