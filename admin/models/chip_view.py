"""The state of speculation of one model in a few words: what a chip beside its name says.

In order: what stands in the way, what goes on now, what the newest answers tell, what would be done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from omlx.errors import Reason
from omlx.records import RequestStats, acceptance_rate
from omlx.server import status

from .model_snapshot import Standing


class Tone(StrEnum):
    GOOD = "good"
    WAIT = "wait"
    WATCH = "watch"
    QUIET = "quiet"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Chip:
    """`key` and `params` are of the catalog; figures follow the words where there are any; `reason` says it whole."""

    tone: Tone
    key: str
    params: Mapping[str, object] = field(default_factory=dict)
    speedup: float | None = None
    acceptance: float | None = None
    reason: Reason | None = None


_ABSENT: Final = ("draft.not_here", "draft.other_quantization")
_SILENT: Final = (
    "spec.off.no_chance",
    "spec.off.requested",
    "spec.off.zero_window",
    "spec.paused.several_active",
)
"""Codes of answers that tell nothing about the next one."""


def chip_view(model: Standing) -> Chip | None:
    """None for a model that cannot be used."""
    if not model.usable:
        return None
    return _obstacle(model) or _now(model) or _lately(model) or _planned(model)


def _obstacle(model: Standing) -> Chip | None:
    configured = model.speculative
    if configured is None:
        return Chip(Tone.BAD, "ui.chip.broken")
    if configured.strategy.off:
        return Chip(Tone.QUIET, "ui.chip.off")
    if model.served is not None and model.served.off is not None:
        return Chip(Tone.QUIET, "ui.chip.impossible", reason=model.served.off)
    reason = model.served.no_draft if model.served is not None else configured.reason
    if reason is None or not reason.code.startswith("draft."):
        return None
    if configured.missing_draft is not None and configured.missing_draft.fetching:
        return Chip(Tone.WAIT, "ui.chip.fetching", reason=reason)
    return Chip(
        Tone.WAIT, "ui.chip.absent" if reason.code in _ABSENT else "ui.chip.unfit", reason=reason
    )


def _now(model: Standing) -> Chip | None:
    active = model.told.active
    if active < 2:
        return None
    params = {"active": active}
    return Chip(
        Tone.WAIT,
        "ui.chip.paused",
        params,
        reason=Reason("spec.paused.several_active", dict(params)),
    )


def _lately(model: Standing) -> Chip | None:
    told = next(
        (stats for stats in reversed(model.recent) if stats.speculation.code not in _SILENT), None
    )
    if told is None:
        return None
    reason = told.speculation
    match reason.code:
        case "spec.on":
            speedup, acceptance = status.speedup(model.recent), acceptance_of(model.recent)
            return Chip(
                Tone.GOOD, "ui.chip.on", speedup=speedup, acceptance=acceptance, reason=reason
            )
        case "spec.off.does_not_pay":
            return Chip(
                Tone.QUIET,
                "ui.chip.does_not_pay",
                speedup=float(reason.params["speedup"] or 0),
                reason=reason,
            )
        case "spec.observing":
            lone = model.told.draft is None
            return Chip(
                Tone.WATCH, "ui.chip.nothing_repeats" if lone else "ui.chip.watching", reason=reason
            )
        case _:
            return Chip(Tone.QUIET, "ui.chip.off", reason=reason)


def _planned(model: Standing) -> Chip:
    configured = model.speculative
    assert configured is not None
    if configured.active_draft is not None:
        return Chip(Tone.WATCH, "ui.chip.with_draft", {"draft": configured.active_draft.name})
    return Chip(Tone.WATCH, "ui.chip.with_ngram")


def acceptance_of(recent: Sequence[RequestStats]) -> float | None:
    """The share of drafted tokens that were right, in these answers."""
    accepted = sum(stats.accepted for stats in recent)
    return acceptance_rate(accepted, sum(stats.proposed for stats in recent))
