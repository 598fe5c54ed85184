"""Drafts of a model: found, checked, and ordered.

Tokenizers are slow to read, so results are cached. A page waits briefly for up to `MAX_AWAITED`
checks; the others finish in the background, and the page asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final, TypeAlias

from omlx.errors import ModelError, Reason
from omlx.models.catalog.compatibility import Tokenizer, checkpoint_mismatch, tokenizer_mismatch
from omlx.models.catalog.files import ModelFiles
from omlx.models.catalog.package import DeclaredDraftModel, usable_package
from omlx.models.catalog.reference import find_draft
from omlx.models.catalog.registry import ModelEntry, Status
from omlx.models.catalog.tokenizer import read_tokenizer
from omlx.models.pool.pool import Pool
from omlx.models.pool.speculation import SpeculationConfig
from omlx.records import RequestStats, sum_drafters

from ..settings.view import Json
from .list_page import is_another_models
from .model_snapshot import ModelSnapshot

TIMEOUT_S: Final = 0.1
MAX_AWAITED: Final = 16
"""Tokenizers — checks of more are not awaited: each takes 20 ms (small) to 0.5 s."""

Compatibility: TypeAlias = Reason | None
"""Why a draft does not fit; None if it does."""

NGRAM: Final = "ngram"
_DRAFT_ONLY: Final = ("model.drafter", "model.head_only", "model.gguf_only")

FIRST_DRAFTS: Final = 16
"""Drafts listed and checked by a page before a request for all."""


class DraftCompatibility:
    """Cached compatibility of drafts. `timeout_s` limits the wait.

    `read` reads a model's tokenizer and raises ModelError.
    """

    def __init__(
        self,
        timeout_s: float = TIMEOUT_S,
        read: Callable[[ModelEntry], Tokenizer] = read_tokenizer,
    ) -> None:
        self._timeout_s = timeout_s
        self._read = read
        self._known: dict[tuple[object, ...], Compatibility] = {}
        self._checks: dict[str, asyncio.Task[None]] = {}

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
            timeout_s = self._timeout_s if len(candidates) <= MAX_AWAITED else 0
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
            return self._read(entry)
        except ModelError as error:
            return Reason(error.code, error.params)


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
        return Reason(error.code, error.params)


def _pair(target: ModelEntry, draft: ModelEntry) -> tuple[object, ...]:
    """Return the key of a result: files and status of both models."""
    return tuple((ModelFiles.recent(entry.path), entry.status) for entry in (target, draft))


@dataclass(frozen=True, slots=True)
class ModelDrafts:
    pool: Pool
    compatibility: DraftCompatibility = field(default_factory=DraftCompatibility)

    async def picker(self, model: ModelSnapshot, results: Json, *, every: bool) -> DraftPicker:
        """Return the first drafts, or `every` draft. Only tokenizers of these are compared.

        `results`: records of the model's trials by draft.
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


@dataclass(frozen=True, slots=True)
class DrafterResult:
    """Median speed-up and acceptance rate of a drafter in recent requests."""

    speedup: float | None
    acceptance: float


@dataclass(frozen=True, slots=True)
class TrialSpeedup:
    """Median speed-up of a draft in its last trial; `stale` after other versions or weights."""

    speedup: float
    stale: bool


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """`adds_bytes`: memory beyond current use; `fits`: target plus draft are within the limit.

    `reason`: why the model cannot draft; not known unless `checked`.
    """

    id: str
    size_bytes: int = 0
    adds_bytes: int = 0
    fits: bool = True
    chosen: bool = False
    declared: bool = False
    checked: bool = True
    result: DrafterResult | None = None
    reason: Reason | None = None
    trial: TrialSpeedup | None = None


@dataclass(frozen=True, slots=True)
class DraftPicker:
    """`missing`: the configured draft if absent; `without`: result without a draft model.

    `more`: number of unlisted drafts that may fit.
    """

    none_chosen: bool
    without: DrafterResult | None
    fit: Sequence[DraftCandidate]
    unfit: Sequence[DraftCandidate]
    missing: DraftCandidate | None = None
    more: int = 0


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """`chosen`: the draft in effect; `declared`: the package's; `missing`: why `chosen` is None."""

    chosen: str | None = None
    declared: str | None = None
    missing: Reason | None = None


@dataclass(frozen=True, slots=True)
class DraftEvidence:
    """Evidence on drafts, by id: compatibility, trials, results, and those in memory."""

    compatibility: Mapping[str, Compatibility] = field(default_factory=dict)
    trials: Mapping[str, TrialSpeedup] = field(default_factory=dict)
    recent: Sequence[RequestStats] = ()
    in_memory: Collection[str] = ()


def first_drafts(
    drafts: Sequence[ModelEntry], evidence: DraftEvidence, choice: DraftChoice
) -> list[ModelEntry]:
    """Return the drafts to list first: chosen, declared, tried or in memory, then smallest.

    Drafts known not to fit are left out.
    """
    likely = {choice.chosen, choice.declared, *evidence.trials, *evidence.in_memory}
    possible = [draft for draft in drafts if evidence.compatibility.get(draft.id) is None]
    possible.sort(key=lambda draft: (draft.id not in likely, draft.size_bytes))
    return possible[:FIRST_DRAFTS]


def draft_picker(
    target: ModelEntry,
    drafts: Sequence[ModelEntry],
    evidence: DraftEvidence,
    choice: DraftChoice,
    limit_bytes: int,
    listed: Collection[ModelEntry] | None = None,
) -> DraftPicker:
    """Build the picker of `drafts`, smallest first, under a memory limit for all models.

    Of the drafts that may fit, only `listed` are shown; None shows all.
    """
    results, missing = drafter_results(evidence.recent), None
    if choice.missing is not None:
        name = str(choice.missing.params.get("draft", ""))
        missing = DraftCandidate(name, chosen=True, reason=choice.missing)
    candidates = [
        DraftCandidate(
            id=draft.id,
            size_bytes=draft.size_bytes,
            adds_bytes=0 if draft.id in evidence.in_memory else draft.size_bytes,
            fits=target.size_bytes + draft.size_bytes <= limit_bytes,
            chosen=draft.id == choice.chosen,
            declared=draft.id == choice.declared,
            checked=draft.id in evidence.compatibility,
            result=results.get(draft.id),
            reason=evidence.compatibility.get(draft.id),
            trial=evidence.trials.get(draft.id),
        )
        for draft in sorted(drafts, key=lambda draft: draft.size_bytes)
    ]
    possible = [candidate for candidate in candidates if candidate.reason is None]
    shown = {draft.id for draft in (drafts if listed is None else listed)}
    fit = [candidate for candidate in possible if candidate.id in shown]
    return DraftPicker(
        none_chosen=choice.chosen is None and choice.missing is None,
        without=results.get(NGRAM),
        fit=fit,
        unfit=[candidate for candidate in candidates if candidate.reason is not None],
        missing=missing,
        more=len(possible) - len(fit),
    )


def drafter_results(recent: Sequence[RequestStats]) -> dict[str, DrafterResult]:
    """Return each drafter's result over requests in which no other drafter proposed."""
    alone: dict[str, list[RequestStats]] = {}
    for stats in recent:
        drafted = [name for name, drafter in stats.drafters.items() if drafter.proposed]
        if len(drafted) == 1:
            alone.setdefault(drafted[0], []).append(stats)
    results = {}
    for name, requests in alone.items():
        known = [stats.steady_speedup for stats in requests]
        speedups = [speedup for speedup in known if speedup is not None]
        rate = sum_drafters(requests)[name].acceptance_rate
        assert rate is not None, "only requests with proposed tokens are counted"
        speedup = round(median(speedups), 2) if speedups else None
        results[name] = DrafterResult(speedup, round(rate, 3))
    return results


def trial_speedups(results: Json) -> dict[str, TrialSpeedup]:
    """Return each draft's speed-up over all kinds of text in its last trial."""
    speedups = {}
    for draft, result in results.items():
        overall = result["record"]["overall"]
        if overall is not None:
            speedups[draft] = TrialSpeedup(overall["median"], stale=bool(result["stale"]))
    return speedups
