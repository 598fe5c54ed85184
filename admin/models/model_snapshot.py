"""A model's state at a point in time: catalog, memory, speculation, requests, prefixes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from omlx.errors import NotFound, OmlxError, Reason
from omlx.models.catalog.config import declared_context, longest_context
from omlx.models.catalog.facts import is_whole, model_facts, parameters
from omlx.models.catalog.files import ModelFiles
from omlx.models.catalog.package import FILE, DeclaredDraftModel, usable_package
from omlx.models.catalog.registry import ModelEntry, Status
from omlx.models.pool.pool import why_no_vision
from omlx.models.pool.served import KVCacheFacts, ModelStatus, ServedModel, State
from omlx.models.pool.speculation import SpeculationConfig
from omlx.models.vision.support import read_vision_off
from omlx.records import PrefixStats, RequestStats
from omlx.server.services import Services
from omlx.settings.file import FileStamp, file_stamp

_DRAFT_NAME: Final = re.compile(r"(?<![a-z])draft(er)?(?![a-z])", re.IGNORECASE)

TEXT_ALONE: Final = Reason("vision.off.text")


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """`context_length` in tokens; users may raise it to `longest_context`.

    None: the files do not say. `no_vision`: why the model reads no images.
    """

    parameters: int | None = None
    context_length: int | None = None
    no_vision: Reason | None = TEXT_ALONE
    longest_context: int | None = None

    def context(self, limit: int | None) -> int | None:
        """Return the length in use, in tokens. `limit`: that of the settings."""
        bounds = (self.longest_context, limit or self.context_length)
        return min(filter(None, bounds), default=None)


NO_FACTS: Final = CheckpointFacts()


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """`speculative` is None for an unusable model or invalid settings.

    `recent`: statistics of the latest requests, newest last. `served` and `prefixes` are None for a
    model not in memory.
    """

    entry: ModelEntry
    status: ModelStatus
    speculative: SpeculationConfig | None = None
    served: ServedModel | None = None
    recent: Sequence[RequestStats] = ()
    prefixes: PrefixStats | None = None
    facts: CheckpointFacts = NO_FACTS

    @property
    def no_vision(self) -> Reason | None:
        """Why the model does not read images; None if it does."""
        vision = self.speculative is None or self.speculative.settings.vision
        return why_no_vision(self.served, self.facts.no_vision, vision=vision)

    @property
    def tower_bytes(self) -> int:
        """Memory of the vision tower, part of the loaded weights."""
        return 0 if self.served is None else self.served.vision.tower_bytes

    @property
    def kv_cache(self) -> KVCacheFacts | None:
        return None if self.served is None else self.served.kv_cache

    @property
    def usable(self) -> bool:
        return self.entry.status is Status.USABLE


def suggested(models: Sequence[ModelEntry], limit_bytes: int) -> str | None:
    """Return the largest chat model within memory, else the largest of all.

    Drafts declared by other models, and models with damaged weights, come last. Reads files.
    """
    drafts = _declared_drafts(models)
    ranked = sorted(models, key=lambda entry: -entry.size_bytes)
    ranked.sort(key=lambda entry: (entry.id in drafts, entry.size_bytes > limit_bytes))
    sound = filter(_can_chat, ranked)
    return next((entry.id for entry in chain(sound, ranked)), None)


def _declared_drafts(models: Sequence[ModelEntry]) -> set[str]:
    names = set()
    for entry in models:
        declared = usable_package(entry.path).declared
        if isinstance(declared, DeclaredDraftModel):
            names.add(declared.draft.repository)
    return names


def _can_chat(entry: ModelEntry) -> bool:
    facts = model_facts(entry.files, entry.id)
    generates = facts.generates and not (facts.embeddings or facts.reranks)
    return generates and is_whole(entry.files)


class ModelSnapshots:
    """Takes snapshots, on the event loop."""

    def __init__(self, services: Services) -> None:
        self.pool = services.pool
        self._activity = services.activity
        self._engine = services.engine
        # Speculation is resolved again after a change of registry, settings or the package file.
        self._revision = (self.pool.registry, self.pool.catalog.configuration)
        self._known: dict[str, tuple[FileStamp, SpeculationConfig | None]] = {}

    @property
    def default(self) -> str | None:
        """Id of the configured default model; None if not found."""
        catalog = self.pool.catalog
        try:
            return None if catalog.default is None else catalog.entry(catalog.default).id
        except NotFound:
            return None

    @property
    def first(self) -> str | None:
        """Id of a page's initial model: the default, the last used, or suggested by memory."""
        if self.default is not None:
            return self.default
        if self.pool.last_used is not None:
            return self.pool.last_used.id
        return suggested(self.pool.models, self.pool.limit_bytes)

    async def of(self, name: str) -> ModelSnapshot:
        """Raises NotFound."""
        (snapshot,) = await self._snapshots([self.pool.entry(name)])
        return snapshot

    async def all(self) -> list[ModelSnapshot]:
        """Return every model of the registry, in its order."""
        return await self._snapshots([self._trusted(entry) for entry in self.pool.registry.entries])

    async def drafts(self) -> frozenset[str]:
        """Return ids of draft models: by name, settings or package."""
        models = self.pool.models

        def read() -> frozenset[str]:
            named = {entry.id for entry in models if _DRAFT_NAME.search(entry.name)}
            resolved = (self._speculation(entry) for entry in models)
            return frozenset(named) | {
                one.draft.id for one in resolved if one is not None and one.draft
            }

        return await asyncio.to_thread(read)

    async def resident(self) -> list[ModelSnapshot]:
        """Return models that are in memory or loading."""
        states = [(entry, self.pool.status(entry.id).state) for entry in self.pool.models]
        return await self._snapshots([entry for entry, state in states if state != State.UNLOADED])

    async def _snapshots(self, entries: Sequence[ModelEntry]) -> list[ModelSnapshot]:
        def read() -> list[tuple[SpeculationConfig | None, CheckpointFacts]]:
            return [(self._speculation(entry), checkpoint_facts(entry)) for entry in entries]

        found = await asyncio.to_thread(read)
        served = {served.id: served for served in self.pool.loaded}
        return [
            ModelSnapshot(
                entry,
                self.pool.status(entry.id),
                speculative,
                served.get(entry.id),
                self._activity.recent(entry.id),
                self._engine.prefix_of(entry.id),
                facts,
            )
            for entry, (speculative, facts) in zip(entries, found, strict=True)
        ]

    def _speculation(self, entry: ModelEntry) -> SpeculationConfig | None:
        """Return the resolved speculation; None if unusable or invalid. Reads files."""
        if not entry.usable:
            return None
        registry, configuration = self._revision
        current = (self.pool.registry, self.pool.catalog.configuration)
        if registry is not current[0] or configuration is not current[1]:
            self._revision, self._known = current, {}
        known, stamp = self._known, file_stamp(entry.path / FILE)
        if entry.id in known and known[entry.id][0] == stamp:
            return known[entry.id][1]
        try:
            speculation = self.pool.speculation(entry.id)
        except OmlxError:
            speculation = None
        if speculation is None or speculation.missing_draft is None:  # a download changes that
            known[entry.id] = stamp, speculation
        return speculation

    def _trusted(self, entry: ModelEntry) -> ModelEntry:
        """Apply the setting that permits a model's own code."""
        brings_code = entry.reason is not None and entry.reason.code == "model.remote_code"
        return self.pool.entry(entry.id) if brings_code else entry


def checkpoint_facts(entry: ModelEntry) -> CheckpointFacts:
    """Return a usable model's facts; others have none. Reads files; never raises."""
    if not entry.usable:
        return NO_FACTS
    files = ModelFiles.recent(entry.path)
    count = parameters(files)
    if count is None:
        return NO_FACTS
    declared = declared_context(files.config)
    longest = None if declared is None else longest_context(files.config, 0)
    return CheckpointFacts(count, declared, read_vision_off(files), longest)
