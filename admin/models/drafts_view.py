"""The drafts to choose from for one model: none first, then those that fit, then those that do not and why."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from omlx.errors import Reason
from omlx.models.catalog.entry import ModelEntry
from omlx.records import RequestStats, sum_drafters

from .fitting import Verdict
from .view import Memory

NGRAM: Final = "ngram"


@dataclass(frozen=True, slots=True)
class Result:
    """What a drafter brought in the newest answers it drafted for: speed against plain, share of its tokens right."""

    speedup: float | None
    acceptance: float


@dataclass(frozen=True, slots=True)
class Tried:
    """What the last trial on this machine found of a draft: speed against plain over all kinds of text. `stale`: it was
    measured with other versions or weights."""

    speedup: float
    stale: bool


@dataclass(frozen=True, slots=True)
class Candidate:
    """`adds_bytes` is what it takes beyond what is in memory; `fits` whether that leaves room for the model itself.
    `reason` says why it cannot draft here; `checked` is False while that is not known."""

    id: str
    name: str
    owner: str
    size_bytes: int
    adds_bytes: int
    fits: bool
    chosen: bool
    declared: bool
    checked: bool = True
    result: Result | None = None
    reason: Reason | None = None
    tried: Tried | None = None


@dataclass(frozen=True, slots=True)
class DraftsView:
    """`missing` is a draft that is named and not here, with the reason."""

    none_chosen: bool
    without: Result | None
    fit: Sequence[Candidate]
    unfit: Sequence[Candidate]
    missing: Candidate | None = None


def drafts_view(
    target: ModelEntry,
    drafts: Sequence[ModelEntry],
    verdicts: Mapping[str, Verdict],
    recent: Sequence[RequestStats],
    memory: Memory,
    *,
    here: Collection[str] = (),
    chosen: str | None,
    declared: str | None,
    missing: Reason | None = None,
    tried: Mapping[str, Tried] | None = None,
) -> DraftsView:
    """`here` are the ids of what is in memory, `chosen` is the draft in effect, `declared` the package's default, None
    for none; `missing` says why the one that is named is not here. Smaller drafts come first."""
    results = results_of(recent)
    candidates = [
        Candidate(
            id=entry.id,
            name=entry.name,
            owner=entry.id.rpartition("/")[0],
            size_bytes=entry.size_bytes,
            adds_bytes=0 if entry.id in here else entry.size_bytes,
            fits=target.size_bytes + entry.size_bytes <= memory.limit_bytes,
            chosen=entry.id == chosen,
            declared=entry.id == declared,
            checked=entry.id in verdicts,
            result=results.get(entry.id),
            reason=verdicts.get(entry.id),
            tried=(tried or {}).get(entry.id),
        )
        for entry in sorted(drafts, key=lambda each: each.size_bytes)
    ]
    return DraftsView(
        none_chosen=chosen is None and missing is None,
        without=results.get(NGRAM),
        fit=[each for each in candidates if each.reason is None],
        unfit=[each for each in candidates if each.reason is not None],
        missing=None if missing is None else _missing(missing),
    )


def results_of(recent: Sequence[RequestStats]) -> dict[str, Result]:
    """By drafter, from the answers for which it alone drafted: those of two say nothing about either."""
    lone: dict[str, list[RequestStats]] = {}
    for stats in recent:
        drafted = [name for name, drafter in stats.drafters.items() if drafter.proposed]
        if len(drafted) == 1:
            lone.setdefault(drafted[0], []).append(stats)
    return {name: _result(name, answers) for name, answers in lone.items()}


def _result(name: str, answers: Sequence[RequestStats]) -> Result:
    known = [stats.speedup for stats in answers if stats.speedup is not None]
    rate = sum_drafters(answers)[name].acceptance_rate
    assert rate is not None, "only answers with proposed tokens are counted"
    return Result(round(median(known), 2) if known else None, round(rate, 3))


def _missing(reason: Reason) -> Candidate:
    name = str(reason.params.get("draft", ""))
    owner, _, short = name.rpartition("/")
    return Candidate(name, short, owner, 0, 0, True, chosen=True, declared=False, reason=reason)
