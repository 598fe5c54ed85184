"""Drafts of a model: found and checked.

Tokenizers are slow to read, so results are cached. A page waits briefly for up to `MAX_AWAITED`
checks; the others finish in the background, and the page asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from omlx.errors import ModelError, Reason
from omlx.models.catalog.files import ModelFiles
from omlx.models.catalog.package import DeclaredDraftModel, usable_package
from omlx.models.catalog.reference import (
    Reference,
    checkpoint_mismatch,
    find_draft,
    tokenizer_mismatch,
)
from omlx.models.catalog.registry import ModelEntry, Status
from omlx.models.catalog.tokenizer import read_tokenizer
from omlx.models.hub.offer import known_draft
from omlx.models.pool.footprint import weight_bytes
from omlx.models.pool.pool import Pool
from omlx.models.pool.speculation import SpeculationConfig
from omlx.server.http.transport import Json
from omlx.text.tokens import Tokenizer

from .draft_picker import (
    Compatibility,
    DraftChoice,
    DraftEvidence,
    DraftPicker,
    draft_picker,
    first_drafts,
    trial_speedups,
)
from .list_page import is_another_models
from .model_snapshot import ModelSnapshot, checkpoint_facts

TIMEOUT_S: Final = 0.1
MAX_AWAITED: Final = 16
"""Tokenizers — checks of more are not awaited: each takes 20 ms (small) to 0.5 s."""

_DRAFT_ONLY: Final = ("model.drafter_extra", "model.drafter", "model.head_only", "model.gguf_only")


@dataclass(frozen=True, slots=True)
class DraftCompatibility:
    """Cached compatibility of drafts. `timeout_s` limits the wait.

    `read` reads a model's tokenizer and raises ModelError.
    """

    timeout_s: float = TIMEOUT_S
    read: Callable[[ModelEntry], Tokenizer] = read_tokenizer
    _known: dict[tuple[object, ...], Compatibility] = field(default_factory=dict)
    _checks: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def of(
        self, target: ModelEntry, drafts: Sequence[ModelEntry]
    ) -> dict[str, Compatibility]:
        """Return results by draft id, without those not known in time."""
        candidates = self._compare_entries(target, drafts)
        if candidates:
            check = self._checks.get(target.id)
            if check is None or check.done():
                check = asyncio.create_task(self._compare_tokenizers(target, candidates))
                self._checks[target.id] = check
            timeout_s = self.timeout_s if len(candidates) <= MAX_AWAITED else 0
            await asyncio.wait([check], timeout=timeout_s)
            if check.done():
                # Raises the error of a failed check.
                check.result()
        return self._results(target, drafts)

    def without_tokenizers(
        self, target: ModelEntry, drafts: Sequence[ModelEntry]
    ) -> dict[str, Compatibility]:
        """Return cached results, or those from entries alone; start no check."""
        self._compare_entries(target, drafts)
        return self._results(target, drafts)

    def _results(
        self, target: ModelEntry, drafts: Sequence[ModelEntry]
    ) -> dict[str, Compatibility]:
        pairs = {draft.id: _pair(target, draft) for draft in drafts}
        return {id: self._known[pair] for id, pair in pairs.items() if pair in self._known}

    def _compare_entries(
        self, target: ModelEntry, drafts: Sequence[ModelEntry]
    ) -> list[ModelEntry]:
        """Store results that need entries only; return drafts whose tokenizers must be compared."""
        candidates = []
        for draft in drafts:
            if _pair(target, draft) in self._known:
                continue
            reason = _unusable(draft) or checkpoint_mismatch(target, draft)
            if reason is None and draft.drafter is None:  # trained ones have no tokenizer
                candidates.append(draft)
            else:
                self._known[_pair(target, draft)] = reason
        return candidates

    async def _compare_tokenizers(
        self, target: ModelEntry, candidates: Sequence[ModelEntry]
    ) -> None:
        """Compare tokenizers, reading each once."""
        ours = await asyncio.to_thread(self._tokenizer, target)
        for draft in candidates:
            theirs = await asyncio.to_thread(self._tokenizer, draft)
            result = await asyncio.to_thread(_compare, ours, theirs)
            self._known[_pair(target, draft)] = result

    def _tokenizer(self, entry: ModelEntry) -> Tokenizer | Reason:
        try:
            return self.read(entry)
        except ModelError as error:
            return error.reason


def _unusable(draft: ModelEntry) -> Compatibility:
    """Return why a model is unusable, except formats that only drafts have."""
    draft_only = draft.reason is None or draft.reason.code in _DRAFT_ONLY
    return None if draft.status is Status.USABLE or draft_only else draft.reason


def _compare(ours: Tokenizer | Reason, theirs: Tokenizer | Reason) -> Compatibility:
    if isinstance(ours, Reason):
        return ours
    if isinstance(theirs, Reason):
        return theirs
    try:
        return tokenizer_mismatch(ours, theirs)
    except ModelError as error:
        return error.reason


def _pair(target: ModelEntry, draft: ModelEntry) -> tuple[object, ...]:
    """Return the key of a result: files and status of both models."""
    return tuple((ModelFiles.recent(entry.path), entry.status) for entry in (target, draft))


@dataclass(frozen=True, slots=True)
class ModelDrafts:
    pool: Pool
    compatibility: DraftCompatibility = field(default_factory=DraftCompatibility)

    async def picker(
        self, model: ModelSnapshot, results: Json, *, every: bool, kept: Collection[str] = ()
    ) -> DraftPicker:
        """Return the first drafts, or `every` draft. Only tokenizers of these are compared.

        `results`: records of the model's trials by draft. `kept`: ids that the page lists already;
        no other is listed then, and none is left out.
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
        trials = trial_speedups(results)
        evidence = DraftEvidence(known, trials, recent=model.recent, in_memory=in_memory)
        choice = await asyncio.to_thread(self._choice, target, model.speculative)

        def listed() -> list[ModelEntry]:
            if kept:
                return [entry for entry in others if entry.id in kept]
            return others if every else first_drafts(others, evidence, choice)

        known |= await self.compatibility.of(target, listed())
        evidence = replace(evidence, compatibility=known)
        shown, dtype = listed(), model.speculative.settings.dtype
        evidence = await asyncio.to_thread(_with_sizes, evidence, target, shown, dtype)
        picker = draft_picker(target, others, evidence, choice, pool.limit_bytes, shown, kept)
        offer, here = known_draft(target.id), {entry.id for entry in others}
        if offer is not None and Reference.parse(offer.model).repository in here:
            offer = None
        return replace(picker, offer=offer)

    def _choice(self, target: ModelEntry, configured: SpeculationConfig) -> DraftChoice:
        """Find the draft in effect and the package's. Reads files."""
        registry = self.pool.registry
        chosen = declared = missing = None
        strategy, name = configured.strategy, configured.settings.draft_model
        if name is not None and (strategy.off or configured.admits_draft):
            found = find_draft(name, registry)
            if isinstance(found, Reason):
                missing = found
            elif not is_another_models(configured):
                chosen = found.id
        of_package = usable_package(target.path).declared
        if isinstance(of_package, DeclaredDraftModel):
            found = find_draft(str(of_package.draft), registry)
            declared = found.id if isinstance(found, ModelEntry) else None
        return DraftChoice(chosen, declared, missing)


def _with_sizes(
    evidence: DraftEvidence, target: ModelEntry, drafts: Sequence[ModelEntry], dtype: str
) -> DraftEvidence:
    """Add shares of parameters and bytes of weights. Reads files."""
    ours = checkpoint_facts(target).parameters
    counts = {draft.id: checkpoint_facts(draft).parameters for draft in drafts}
    shares = {id: count / ours for id, count in counts.items() if ours and count}
    nbytes = {entry.id: weight_bytes(entry, dtype) for entry in (target, *drafts)}
    return replace(evidence, shares=shares, nbytes=nbytes)
