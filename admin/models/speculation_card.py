"""The card of a model's speculation: switch, strategy, draft, draft length, what is in effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from omlx.errors import Reason
from omlx.models.pool.speculation_config import SpeculationConfig
from omlx.settings.schema import Settings

from ..settings.view import SettingView
from .chip import is_another_models
from .draft_picker import DraftPicker

STRATEGY: Final = "speculation"
DRAFT: Final = "draft_model"
DRAFT_LENGTH: Final = ("draft_initial", "draft_min", "draft_max", "num_draft_tokens")
SETTINGS: Final = frozenset((STRATEGY, DRAFT, *DRAFT_LENGTH))
"""The settings with a control on the card."""

OFF: Final = "off"
STRATEGIES: Final = ("auto", "ngram", "draft", "ngram;draft")
"""Strategies with a label; any other is shown as it is written."""

_ON_PICKER: Final = ("draft.", "spec.off.no_draft_model")
"""Prefixes of reasons that the draft picker shows."""


@dataclass(frozen=True, slots=True)
class InEffect:
    """A value in effect: `name` is a key below `ui.effect.`, `source` the source that set it."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class SpeculationCard:
    """`strategy` is the stored one of this model, empty for none; `inherited` the one without it.

    `inherits_draft`: the model has a draft without a stored one. `custom` is a strategy that is
    not one of `strategies`; `reason` says why no draft is used.
    """

    on: bool
    strategy: str
    inherited: str
    inherits_draft: bool
    custom: str | None
    strategy_setting: SettingView
    draft_setting: SettingView
    drafts: DraftPicker
    window: Sequence[SettingView]
    in_effect: Sequence[InEffect]
    reason: Reason | None
    warnings: Sequence[Reason]
    strategies: Sequence[str] = STRATEGIES


def speculation_card(
    configured: SpeculationConfig,
    settings: Mapping[str, SettingView],
    inherited: Settings,
    drafts: DraftPicker,
) -> SpeculationCard:
    """`settings` are the model's, `inherited` those it would have without stored ones."""
    setting, reason = settings[STRATEGY], configured.reason
    shown = setting.effect if setting.locked else setting.text or setting.effect
    on_picker = reason is not None and reason.code.startswith(_ON_PICKER)
    return SpeculationCard(
        on=not configured.strategy.off,
        strategy=setting.effect if setting.locked else setting.text,
        inherited=inherited.speculation,
        inherits_draft=inherited.draft_model is not None,
        custom=None if shown in (*STRATEGIES, OFF) else shown,
        strategy_setting=setting,
        draft_setting=settings[DRAFT],
        drafts=drafts,
        window=[settings[name] for name in DRAFT_LENGTH],
        in_effect=in_effect(configured),
        reason=None if on_picker else reason,
        warnings=configured.warnings,
    )


def in_effect(configured: SpeculationConfig) -> list[InEffect]:
    """Return strategy, draft and draft length of the next request, each with its source."""
    sources, length = configured.sources, configured.draft_length
    draft = configured.settings.draft_model
    lines = [InEffect("strategy", str(configured.strategy), sources[STRATEGY].value)]
    drafts = configured.strategy.clause("draft") is not None and not is_another_models(configured)
    if draft is not None and drafts:
        lines.append(InEffect("draft", draft, sources[DRAFT].value))
    source = min((sources[name] for name in DRAFT_LENGTH), key=lambda source: source.rank)
    if length.fixed is None:
        lines.append(InEffect("window", f"{length.min}–{length.max}", source.value))
    else:
        lines.append(InEffect("window_fixed", str(length.fixed), source.value))
    return lines
