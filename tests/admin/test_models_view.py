"""The list of models and the card of one: plain data in, plain data out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omlx.admin.models.chip_view import Chip, Tone
from omlx.admin.models.drafts_view import DraftsView
from omlx.admin.models.model_snapshot import Standing
from omlx.admin.models.speculation_view import (
    InEffect,
    SpeculationView,
    in_effect,
    speculation_view,
)
from omlx.admin.models.view import Memory, ModelRow, ModelsView, Place, SkippedRow, models_view
from omlx.admin.settings.view import settings_view
from omlx.draft_length import DraftLength
from omlx.engine.strategy import parse
from omlx.errors import Reason
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.models.pool.load_weights import LoadProgress
from omlx.models.pool.resident import ModelStatus, State
from omlx.models.pool.speculation_config import SpeculationConfig
from omlx.settings.layer import Layer, Source
from omlx.settings.resolve import resolve
from omlx.settings.schema import Scope, Settings, Value, table

MEMORY = Memory(limit_bytes=1000, used_bytes=10)
HEAD_ONLY = Reason("model.head_only", {"kind": "EAGLE"})
NGRAM_READY = Chip(Tone.WATCH, "ui.chip.with_ngram")
NONE = DraftsView(none_chosen=True, without=None, fit=[], unfit=[])


def entry(name: str, **more: Any) -> ModelEntry:
    return ModelEntry(name, Path("/m") / name, "home", **more)


def test_models_in_memory_come_first_and_what_is_not_offered_apart() -> None:
    idle = Standing(
        entry("org/idle", size_bytes=5, model_type="llama"),
        ModelStatus(State.UNLOADED),
        SpeculationConfig(),
    )
    loading = Standing(
        entry("plain", size_bytes=9, model_type="qwen3", quantization="4-bit"),
        ModelStatus(State.LOADING, LoadProgress(3, 12), waiting=2),
        SpeculationConfig(settings=Settings(pinned=True)),
    )
    skipped = Standing(
        entry("org/head", status=Status.SKIPPED, reason=HEAD_ONLY), ModelStatus(State.UNLOADED)
    )
    assert models_view([idle, skipped, loading], MEMORY, "org/idle") == ModelsView(
        MEMORY,
        models=[
            ModelRow(
                id="plain",
                name="plain",
                owner="",
                kind=("qwen3", "4-bit"),
                size_bytes=9,
                found_in="home",
                path="/m/plain",
                place=Place("loading", 0.25, active=0, waiting=2, weights_bytes=0),
                pinned=True,
                is_default=False,
                chip=NGRAM_READY,
            ),
            ModelRow(
                id="org/idle",
                name="idle",
                owner="org",
                kind=("llama",),
                size_bytes=5,
                found_in="home",
                path="/m/org/idle",
                place=Place("unloaded", None, active=0, waiting=0, weights_bytes=0),
                pinned=False,
                is_default=True,
                chip=NGRAM_READY,
            ),
        ],
        skipped=[SkippedRow("org/head", "/m/org/head", "home", shadowed=False, reason=HEAD_ONLY)],
    )


def card(
    configured: SpeculationConfig, stored: dict[str, Value], **inherited: Any
) -> SpeculationView:
    own = Layer(Source.MODEL, stored)
    settings = settings_view(Scope.MODEL, resolve([own]), own, "r")["settings"]
    return speculation_view(configured, settings, Settings(**inherited), NONE)


def test_the_switch_shows_what_is_in_effect_and_the_strategy_what_is_kept() -> None:
    view = card(SpeculationConfig(), {}, draft_model="org/small")
    assert (view.on, view.strategy, view.inherited, view.inherits_draft, view.custom) == (
        True,
        "",
        "auto",
        True,
        None,
    )
    view = card(SpeculationConfig(strategy=parse("off")), {"speculation": "off"})
    assert (view.on, view.strategy, view.inherits_draft, view.custom) == (False, "off", False, None)
    view = card(
        SpeculationConfig(strategy=parse("ngram:m=8;draft")),
        {"speculation": "ngram:m=8;draft"},
        speculation="off",
    )
    assert (view.on, view.strategy, view.inherited, view.custom) == (
        True,
        "ngram:m=8;draft",
        "off",
        "ngram:m=8;draft",
    )


def test_a_reason_that_the_picker_shows_is_not_said_twice() -> None:
    absent = Reason("draft.not_here", {"draft": "org/gone"})
    ceiling = Reason("spec.off.no_draft")
    assert [card(SpeculationConfig(reason=reason), {}).reason for reason in (absent, ceiling)] == [
        None,
        ceiling,
    ]


def test_what_is_in_effect_and_who_decided_it() -> None:
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
