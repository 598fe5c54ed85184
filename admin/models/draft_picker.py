"""The draft picker of a model: candidates in rank order, one of them recommended.

The rank is of sizes, trials and the package alone, so that a finished check moves no candidate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from statistics import median
from typing import Final, TypeAlias
from urllib.parse import urlencode

from omlx.errors import Reason
from omlx.measure.sample import NOTABLE
from omlx.models.catalog.registry import ModelEntry
from omlx.models.hub.offer import Companion
from omlx.records import RequestStats, sum_drafters
from omlx.server.http.transport import Json

Compatibility: TypeAlias = Reason | None
"""Why a draft does not fit; None if it does."""

NGRAM: Final = "ngram"

FIRST_DRAFTS: Final = 16
"""Drafts listed and checked by a page before a request for all."""

MAX_SIZE: Final = 0.5
"""Parameters of draft / target — drafting of more takes the time of decoding."""

BEST_SIZE: Final = 1 / 12
"""Parameters of draft / target — about that of families that publish draft models."""


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

    `reason`: why the model cannot draft; not known unless `checked`. `share`: size, as a part of
    the target's; `trained`: for this target. `why`: the reason to recommend it, for one candidate
    at most.
    """

    id: str
    size_bytes: int = 0
    share: float = 0.0
    adds_bytes: int = 0
    fits: bool = True
    chosen: bool = False
    declared: bool = False
    trained: bool = False
    checked: bool = True
    result: DrafterResult | None = None
    reason: Reason | None = None
    trial: TrialSpeedup | None = None
    why: Reason | None = None

    @property
    def too_similar(self) -> bool:
        """Whether the draft is nearly as large as its target: no gain is expected."""
        return self.share > MAX_SIZE

    @property
    def selectable(self) -> bool:
        return self.chosen or self.reason is None

    @property
    def rank(self) -> tuple[int, float]:
        """Sort key: measured gain, the package's, closest to the best size, no gain."""
        speedup = self.trial.speedup if self.trial and not self.trial.stale else None
        distance = abs(log(max(self.share, 1e-6) / BEST_SIZE))
        if speedup is not None and speedup >= NOTABLE:
            return 0, -speedup
        if not self.fits or self.too_similar:
            return 4, distance
        if speedup is not None:
            return 3, -speedup
        return (1 if self.declared or self.trained else 2), distance


@dataclass(frozen=True, slots=True)
class DraftPicker:
    """`missing`: the configured draft if absent; `without`: result without a draft model.

    `more`: number of unlisted drafts that may fit; `offer`: a draft of the family on the hub.
    """

    none_chosen: bool
    without: DrafterResult | None
    fit: Sequence[DraftCandidate]
    unfit: Sequence[DraftCandidate]
    missing: DraftCandidate | None = None
    more: int = 0
    offer: Companion | None = None

    @property
    def query(self) -> str:
        """Query that keeps the listed drafts while some are being checked, else empty."""
        if all(draft.checked for draft in self.fit):
            return ""
        return f"?{urlencode([('keep', draft.id) for draft in self.fit])}"


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """`chosen`: the draft in effect; `declared`: the package's; `missing`: why `chosen` is None."""

    chosen: str | None = None
    declared: str | None = None
    missing: Reason | None = None


@dataclass(frozen=True, slots=True)
class DraftEvidence:
    """Evidence on drafts, by id: compatibility, trials, results, and those in memory.

    `shares`: parameters of draft / target; `nbytes`: memory of the weights, the target's too. By
    size on disk where they are missing.
    """

    compatibility: Mapping[str, Compatibility] = field(default_factory=dict)
    trials: Mapping[str, TrialSpeedup] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    nbytes: Mapping[str, int] = field(default_factory=dict)
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
    kept: Collection[str] = (),
) -> DraftPicker:
    """Build the picker of `drafts` by rank, under a memory limit for all models.

    Of the drafts that may fit, only `listed` are shown; None shows all. Those of the ids `kept`
    stay there if they turn out not to fit.
    """
    results, missing = drafter_results(evidence.recent), None
    if choice.missing is not None:
        name = str(choice.missing.params.get("draft", ""))
        missing = DraftCandidate(name, chosen=True, reason=choice.missing)
    candidates = sorted(
        (_candidate(target, draft, evidence, choice, results, limit_bytes) for draft in drafts),
        key=lambda candidate: candidate.rank,
    )
    possible = [each for each in candidates if each.reason is None or each.id in kept]
    shown = {draft.id for draft in (drafts if listed is None else listed)}.union(kept)
    fit = [candidate for candidate in possible if candidate.id in shown]
    return DraftPicker(
        none_chosen=choice.chosen is None and choice.missing is None,
        without=results.get(NGRAM),
        fit=_recommended(fit),
        unfit=[candidate for candidate in candidates if candidate not in possible],
        missing=missing,
        more=len(possible) - len(fit),
    )


def _candidate(
    target: ModelEntry,
    draft: ModelEntry,
    evidence: DraftEvidence,
    choice: DraftChoice,
    results: Mapping[str, DrafterResult],
    limit_bytes: int,
) -> DraftCandidate:
    nbytes = evidence.nbytes.get(draft.id, draft.size_bytes)
    total = evidence.nbytes.get(target.id, target.size_bytes) + nbytes
    by_size = draft.size_bytes / max(1, target.size_bytes)
    return DraftCandidate(
        id=draft.id,
        size_bytes=draft.size_bytes,
        share=evidence.shares.get(draft.id, by_size),
        adds_bytes=0 if draft.id in evidence.in_memory else nbytes,
        fits=total <= limit_bytes,
        chosen=draft.id == choice.chosen,
        declared=draft.id == choice.declared,
        trained=draft.drafter is not None,
        checked=draft.id in evidence.compatibility,
        result=results.get(draft.id),
        reason=evidence.compatibility.get(draft.id),
        trial=evidence.trials.get(draft.id),
    )


def _recommended(candidates: Sequence[DraftCandidate]) -> list[DraftCandidate]:
    """Return the candidates, the best with the reason for recommending it."""
    fitting = (each for each in candidates if each.checked and each.reason is None)
    best = next(fitting, None)
    if best is None or best.rank[0] > 2:
        return list(candidates)
    why = Reason("ui.drafts.why.size", {"times": round(1 / max(best.share, 1e-6))})
    if best.rank[0] == 0 and best.trial is not None:
        why = Reason("ui.drafts.why.trial", {"speedup": best.trial.speedup})
    elif best.declared:
        why = Reason("ui.drafts.why.package")
    elif best.trained:
        why = Reason("ui.drafts.why.trained")
    return [replace(each, why=why) if each is best else each for each in candidates]


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
