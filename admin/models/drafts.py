"""The drafts of a model, as far as its page shows them: found, checked, and put in order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from omlx.errors import Reason
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.models.catalog.reference import find_draft
from omlx.models.package.package import DeclaredDraftModel, usable_package
from omlx.models.pool.pool import Pool
from omlx.models.pool.speculation_config import SpeculationConfig

from ..settings.view import Json
from .chip import is_another_models
from .draft_compatibility import DraftCompatibility
from .draft_picker import (
    DraftChoice,
    DraftEvidence,
    DraftPicker,
    draft_picker,
    first_drafts,
    trial_speedups,
)
from .model_snapshot import ModelSnapshot


@dataclass(frozen=True, slots=True)
class ModelDrafts:
    pool: Pool
    compatibility: DraftCompatibility = field(default_factory=DraftCompatibility)

    async def picker(self, model: ModelSnapshot, results: Json, *, every: bool) -> DraftPicker:
        """Return the first drafts, or `every` one. Only tokenizers of these are compared.

        `results` are the records of the model's trials by draft.
        """
        if model.speculative is None:
            return DraftPicker(none_chosen=False, without=None, fit=(), unfit=())
        pool, target = self.pool, model.entry
        others = [
            entry
            for entry in pool.registry.entries
            if entry.id != target.id and entry.status is not Status.SHADOWED
        ]
        in_memory = {served.id for served in pool.loaded}
        in_memory |= {served.draft for served in pool.loaded if served.draft is not None}
        known = self.compatibility.without_tokenizers(target, others)
        evidence = DraftEvidence(known, trial_speedups(results), model.recent, in_memory)
        choice = await asyncio.to_thread(self._choice, target, model.speculative)
        checked = others if every else first_drafts(others, evidence, choice)
        known |= await self.compatibility.of(target, checked)
        evidence = replace(evidence, compatibility=known)
        listed = others if every else first_drafts(others, evidence, choice)
        return draft_picker(target, others, evidence, choice, pool.limit_bytes, listed)

    def _choice(self, target: ModelEntry, configured: SpeculationConfig) -> DraftChoice:
        """Find the draft in effect and the one that the model's package declares. Reads files."""
        registry = self.pool.registry
        chosen = declared = missing = None
        strategy, name = configured.strategy, configured.settings.draft_model
        if name is not None and (strategy.off or strategy.clause("draft") is not None):
            found = find_draft(name, registry)
            if isinstance(found, Reason):
                missing = found
            elif not is_another_models(configured):
                chosen = found.id
        package = usable_package(target.path)
        if isinstance(package.declared, DeclaredDraftModel):
            found = find_draft(str(package.declared.draft), registry)
            declared = found.id if isinstance(found, ModelEntry) else None
        return DraftChoice(chosen, declared, missing)
