"""The drafts to choose from for a model: none, those that fit, those that do not fit and why."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from omlx.errors import Reason
from omlx.models.catalog.entry import ModelEntry
from omlx.records import RequestStats, sum_drafters

from ..settings.view import Json
from .draft_compatibility import Compatibility

NGRAM: Final = "ngram"

FIRST_DRAFTS: Final = 16
"""Drafts that a page lists and checks before all are asked for."""


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
    """`adds_bytes` is memory beyond what is in use; `fits`: target and draft fit into the limit.

    `reason` says why it cannot draft; it is not known yet unless `checked`.
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
    """`missing` is the configured draft if it is not here; `without` the result of no draft.

    `more` drafts that may fit are not listed.
    """

    none_chosen: bool
    without: DrafterResult | None
    fit: Sequence[DraftCandidate]
    unfit: Sequence[DraftCandidate]
    missing: DraftCandidate | None = None
    more: int = 0


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """`chosen` is the draft in effect, `declared` the package's; `missing`: why one is not here."""

    chosen: str | None = None
    declared: str | None = None
    missing: Reason | None = None


@dataclass(frozen=True, slots=True)
class DraftEvidence:
    """What is known of drafts, by id: compatibility, trials, results, and those in memory."""

    compatibility: Mapping[str, Compatibility] = field(default_factory=dict)
    trials: Mapping[str, TrialSpeedup] = field(default_factory=dict)
    recent: Sequence[RequestStats] = ()
    in_memory: Collection[str] = ()


def first_drafts(
    drafts: Sequence[ModelEntry], evidence: DraftEvidence, choice: DraftChoice
) -> list[ModelEntry]:
    """Return the drafts to list first: chosen, declared, tried or in memory, then the smallest.

    Those that are known not to fit are left out.
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
    """Build the picker of `drafts`, the smallest first, under a memory limit for all models.

    Of the drafts that may fit only those `listed` are shown, by default all.
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
    """Return the result of each drafter over the requests in which no other one drafted."""
    alone: dict[str, list[RequestStats]] = {}
    for stats in recent:
        drafted = [name for name, drafter in stats.drafters.items() if drafter.proposed]
        if len(drafted) == 1:
            alone.setdefault(drafted[0], []).append(stats)
    return {name: _result(name, requests) for name, requests in alone.items()}


def trial_speedups(results: Json) -> dict[str, TrialSpeedup]:
    """Return the speed-up of each draft over all kinds of text of its last trial."""
    speedups = {}
    for draft, result in results.items():
        overall = result["record"]["overall"]
        if overall is not None:
            speedups[draft] = TrialSpeedup(overall["median"], stale=bool(result["stale"]))
    return speedups


def _result(name: str, requests: Sequence[RequestStats]) -> DrafterResult:
    speedups = [stats.speedup for stats in requests if stats.speedup is not None]
    rate = sum_drafters(requests)[name].acceptance_rate
    assert rate is not None, "only requests with proposed tokens are counted"
    return DrafterResult(round(median(speedups), 2) if speedups else None, round(rate, 3))
