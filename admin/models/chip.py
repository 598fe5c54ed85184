"""The chip beside a model's name: its state of speculation in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from omlx.errors import Reason
from omlx.models.pool.resident import State
from omlx.models.pool.speculation_config import SpeculationConfig
from omlx.records import RequestStats, acceptance_rate
from omlx.server import status
from omlx.settings.layer import Source

from .model_snapshot import ModelSnapshot


class Tone(StrEnum):
    GOOD = "good"
    WAIT = "wait"
    WATCH = "watch"
    QUIET = "quiet"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Chip:
    """A sentence of the catalog with its parameters and figures; `reason` explains it in full."""

    tone: Tone
    key: str
    params: Mapping[str, object] = field(default_factory=dict)
    speedup: float | None = None
    acceptance: float | None = None
    reason: Reason | None = None


DRAFT: Final = "draft_model"
_ABSENT: Final = ("draft.not_here", "draft.other_quantization")
_INCONCLUSIVE: Final = (
    "spec.off.no_chance",
    "spec.off.requested",
    "spec.off.zero_window",
    "batch.off.uneven",
)
"""Outcomes of a request that predict nothing about the next one."""


def model_chip(model: ModelSnapshot) -> Chip | None:
    """Return the chip of a model, None while it cannot be used: not at all, or not loaded yet.

    In this order: an obstacle, the latest outcome, the configuration.
    """
    if not model.usable or model.status.state is State.LOADING:
        return None
    if model.speculative is None:
        return Chip(Tone.BAD, "ui.chip.broken")
    return _obstacle(model, model.speculative) or _latest(model) or _configured(model.speculative)


def is_another_models(configured: SpeculationConfig) -> bool:
    """Whether the draft model is configured for all models and does not fit this one."""
    reason = configured.reason
    is_shared = configured.sources[DRAFT] in (Source.CLI, Source.ENVIRONMENT, Source.GLOBAL)
    return is_shared and reason is not None and reason.code.startswith("draft.unfit.")


def _obstacle(model: ModelSnapshot, configured: SpeculationConfig) -> Chip | None:
    if configured.strategy.off:
        return Chip(Tone.QUIET, "ui.chip.off")
    reason = configured.reason
    if model.served is not None:
        if model.served.off_reason is not None:
            return Chip(Tone.QUIET, "ui.chip.impossible", reason=model.served.off_reason)
        reason = model.served.no_draft_reason
    if reason is None or not reason.code.startswith("draft."):
        return None
    if is_another_models(configured):
        return None
    if configured.missing_draft is not None and configured.missing_draft.fetching:
        return Chip(Tone.WAIT, "ui.chip.fetching", reason=reason)
    if reason.code in _ABSENT:
        return Chip(Tone.WAIT, "ui.chip.absent", reason=reason)
    return Chip(Tone.WAIT, "ui.chip.unfit", reason=reason)


def _latest(model: ModelSnapshot) -> Chip | None:
    latest = _conclusive(model)
    if latest is None:
        return None
    reason = latest.speculation
    match reason.code:
        case "spec.on":
            accepted = sum(stats.accepted for stats in model.recent)
            proposed = sum(stats.proposed for stats in model.recent)
            speedup = status.speedup(model.recent)
            is_slower = speedup is not None and speedup < 1
            return Chip(
                Tone.WAIT if is_slower else Tone.GOOD,
                "ui.chip.on",
                speedup=speedup,
                acceptance=acceptance_rate(accepted, proposed),
                reason=reason,
            )
        case "spec.off.does_not_pay":
            speedup = float(reason.params["speedup"] or 0)
            return Chip(Tone.QUIET, "ui.chip.does_not_pay", speedup=speedup, reason=reason)
        case "spec.observing" if model.status.draft is None:
            return Chip(Tone.WATCH, "ui.chip.nothing_repeats", reason=reason)
        case "spec.observing":
            return Chip(Tone.WATCH, "ui.chip.watching", reason=reason)
        case _:
            return Chip(Tone.QUIET, "ui.chip.off", reason=reason)


def _conclusive(model: ModelSnapshot) -> RequestStats | None:
    for stats in reversed(model.recent):
        if stats.speculation.code not in _INCONCLUSIVE:
            return stats
    return None


def _configured(configured: SpeculationConfig) -> Chip:
    if configured.active_draft is not None:
        return Chip(Tone.WATCH, "ui.chip.with_draft", {"draft": configured.active_draft.name})
    return Chip(Tone.WATCH, "ui.chip.with_ngram")
