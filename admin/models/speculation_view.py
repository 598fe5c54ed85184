"""The card of a model's speculation: on or off, who drafts, how far, what is in effect and who decided it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from omlx.errors import Reason
from omlx.models.pool.speculation_config import SpeculationConfig
from omlx.settings.schema import Settings

from ..settings.form_view import Field, field_view
from ..settings.view import Json
from .drafts_view import DraftsView

STRATEGY: Final = "speculation"
DRAFT: Final = "draft_model"
WINDOW: Final = ("draft_initial", "draft_min", "draft_max", "num_draft_tokens")
OWN: Final = frozenset((STRATEGY, DRAFT, *WINDOW))
"""The settings that the card has controls of its own for."""

OFF: Final = "off"
_PICKED: Final = ("draft.", "spec.off.no_draft_model")
"""Reasons that the picker shows: by what is picked, or beside it."""

STRATEGIES: Final = ("auto", "ngram", "draft", "ngram;draft")
"""Those with a name in the card; any other is shown as it is written."""


@dataclass(frozen=True, slots=True)
class InEffect:
    """One line of what is in effect: `name` is a key below `ui.effect.`, `source` who decided."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class SpeculationView:
    """`on` is what the switch shows. `strategy` is what is kept for this model, empty for nothing; `inherited` what is
    in effect otherwise, `inherits_draft` whether a draft is then. `custom` is a strategy without a name in
    `strategies`; `reason` says why no draft is used."""

    on: bool
    strategy: str
    inherited: str
    inherits_draft: bool
    custom: str | None
    locked: Sequence[str]
    drafts: DraftsView
    window: Sequence[Field]
    in_effect: Sequence[InEffect]
    reason: Reason | None
    warnings: Sequence[Reason]
    strategies: Sequence[str] = STRATEGIES


def speculation_view(
    configured: SpeculationConfig,
    settings: Mapping[str, Json],
    inherited: Settings,
    drafts: DraftsView,
) -> SpeculationView:
    """`settings` is what `settings_view` tells of this model, `inherited` what it had if nothing were kept for it."""
    strategy = settings[STRATEGY]
    kept = strategy["stored"] or ""
    shown = kept or strategy["value"]
    return SpeculationView(
        on=not configured.strategy.off,
        strategy=kept,
        inherited=inherited.speculation,
        inherits_draft=inherited.draft_model is not None,
        custom=None if shown in (*STRATEGIES, OFF) else shown,
        locked=[name for name in sorted(OWN) if settings[name]["locked"]],
        drafts=drafts,
        window=[field_view(name, settings[name]) for name in WINDOW],
        in_effect=in_effect(configured),
        reason=None
        if configured.reason is None or configured.reason.code.startswith(_PICKED)
        else configured.reason,
        warnings=configured.warnings,
    )


def in_effect(configured: SpeculationConfig) -> list[InEffect]:
    """Strategy, draft and window as the next request meets them, with who decided each."""
    sources, length = configured.sources, configured.draft_length
    lines = [InEffect("strategy", str(configured.strategy), sources[STRATEGY].value)]
    if (
        configured.settings.draft_model is not None
        and configured.strategy.step("draft") is not None
    ):
        lines.append(InEffect("draft", configured.settings.draft_model, sources[DRAFT].value))
    bounded = min((sources[name] for name in WINDOW), key=lambda source: source.rank)
    if length.fixed is None:
        lines.append(InEffect("window", f"{length.min}–{length.max}", bounded.value))
    else:
        lines.append(InEffect("window_fixed", str(length.fixed), bounded.value))
    return lines
