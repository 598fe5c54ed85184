"""An ended request in detail: timeline, drafters, settings in effect, texts where they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from omlx.records import AppliedSetting, RequestStats
from omlx.server.request.activity import Outcome

from .views import AnswerView, answer_view

MIN_PHASE_S = 0.0005
"""Seconds — shorter phases are left out: they would read as 0 ms."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase from `left` over `share`, both parts of the whole; `name` ends `ui.request.phase.`"""

    name: str
    seconds: float
    left: float
    share: float


@dataclass(frozen=True, slots=True)
class DrafterRow:
    name: str
    proposed: int
    accepted: int
    rounds: int
    acceptance: float | None


@dataclass(frozen=True, slots=True)
class RequestDetail:
    """`can_verify`: the answer has a receipt. `answer_text` is None unless texts are kept."""

    answer: AnswerView
    phases: Sequence[Phase]
    drafters: Sequence[DrafterRow]
    settings: Sequence[AppliedSetting]
    strategy: str | None
    answer_text: str | None
    can_verify: bool = False


def request_detail(ended: Outcome, *, can_verify: bool = False) -> RequestDetail:
    stats = ended.stats
    return RequestDetail(
        answer=answer_view(ended),
        phases=phases(ended),
        drafters=[] if stats is None else drafter_rows(stats),
        settings=ended.settings,
        strategy=None if stats is None else stats.strategy,
        answer_text=None if ended.answer is None else str(ended.answer),
        can_verify=can_verify,
    )


def phases(ended: Outcome) -> list[Phase]:
    """Return the phases in order; they add up to the duration."""
    stats, known = ended.stats, [("loading", ended.load_s)]
    if stats is not None:
        times = {"queue": stats.queue_ms, "prefill": stats.prompt_ms, "decode": stats.predicted_ms}
        known += [(name, ms / 1000) for name, ms in times.items()]
    rest = ended.seconds - sum(seconds for _, seconds in known)
    known.insert(1, ("preparing", max(0.0, rest)))
    total = sum(seconds for _, seconds in known) or 1.0
    found, left = [], 0.0
    for name, seconds in known:
        if seconds >= MIN_PHASE_S:
            found.append(Phase(name, seconds, left / total, seconds / total))
            left += seconds
    return found


def drafter_rows(stats: RequestStats) -> list[DrafterRow]:
    """Return the drafters that proposed something."""
    return [
        DrafterRow(name, each.proposed, each.accepted, each.rounds, each.acceptance_rate)
        for name, each in stats.drafters.items()
        if each.proposed
    ]
