"""The card of a model's speculation."""

from __future__ import annotations

from typing import Any

from omlx.admin.models.drafts import DraftPicker
from omlx.admin.models.model_page import InEffect, SpeculationCard, in_effect, speculation_card
from omlx.admin.settings.view import setting_views
from omlx.draft_length import DraftLength
from omlx.engine.speculation.strategy import parse
from omlx.errors import Reason
from omlx.models.pool.speculation import SpeculationConfig
from omlx.settings.layers import Layer, Source, resolve
from omlx.settings.schema import Scope, Settings, Value, table

NO_DRAFTS = DraftPicker(none_chosen=True, without=None, fit=[], unfit=[])


def card(
    configured: SpeculationConfig, stored: dict[str, Value], **inherited: Any
) -> SpeculationCard:
    own = Layer(Source.MODEL, stored)
    settings = setting_views(Scope.MODEL, resolve([own]), own)
    return speculation_card(configured, settings, Settings(**inherited), NO_DRAFTS)


def test_the_switch_shows_the_strategy_in_effect_and_the_select_the_stored_one() -> None:
    view = card(SpeculationConfig(), {}, draft_model="org/small")
    assert (view.on, view.strategy, view.inherited) == (True, "", "auto")
    assert (view.inherits_draft, view.custom) == (True, None)

    view = card(SpeculationConfig(strategy=parse("off")), {"speculation": "off"})
    assert (view.on, view.strategy) == (False, "off")
    assert (view.inherits_draft, view.custom) == (False, None)

    custom = "ngram:m=8;draft"
    configured = SpeculationConfig(strategy=parse(custom))
    view = card(configured, {"speculation": custom}, speculation="off")
    assert (view.on, view.strategy, view.inherited) == (True, custom, "off")
    assert view.custom == custom


def test_a_reason_that_the_picker_shows_is_not_repeated() -> None:
    absent = Reason("draft.not_here", {"draft": "org/gone"})
    ceiling = Reason("spec.off.no_draft")
    assert card(SpeculationConfig(reason=absent), {}).reason is None
    assert card(SpeculationConfig(reason=ceiling), {}).reason == ceiling


def test_values_in_effect_have_their_source() -> None:
    sources = dict.fromkeys(table(), Source.BUILT_IN)
    assert in_effect(SpeculationConfig()) == [
        InEffect("strategy", "auto", "built_in"),
        InEffect("window", "1–64", "built_in"),
    ]
    drafting = SpeculationConfig(
        draft_length=DraftLength.exactly(6),
        settings=Settings(draft_model="org/small"),
        sources={**sources, "draft_model": Source.PACKAGE, "num_draft_tokens": Source.MODEL},
    )
    assert in_effect(drafting) == [
        InEffect("strategy", "auto", "built_in"),
        InEffect("draft", "org/small", "package"),
        InEffect("window_fixed", "6", "model"),
    ]
    lookup = SpeculationConfig(strategy=parse("ngram"), settings=Settings(draft_model="org/small"))
    assert [line.name for line in in_effect(lookup)] == ["strategy", "window"]
