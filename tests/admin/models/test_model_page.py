"""The page of a model: facts of its checkpoint, speculation, beginnings that return."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from omlx.admin.models.drafts import DraftPicker
from omlx.admin.models.model_page import (
    MAX_CHARACTERS,
    InEffect,
    PrefixCard,
    SpeculationCard,
    beginning_rows,
    first_words,
    in_effect,
    prefix_card,
    speculation_card,
)
from omlx.admin.models.model_snapshot import (
    NO_FACTS,
    CheckpointFacts,
    ModelSnapshot,
    checkpoint_facts,
)
from omlx.admin.settings.view import setting_views
from omlx.admin.web.rendering import render
from omlx.catalog import catalog
from omlx.draft_length import DraftLength
from omlx.engine.speculation.strategy import parse
from omlx.engine.types import PromptForecast
from omlx.errors import Reason
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry, Status
from omlx.models.pool.served import ModelStatus, State
from omlx.models.pool.speculation import SpeculationConfig
from omlx.records import PrefixStats, RequestStats
from omlx.server.beginnings.beginning import Beginning
from omlx.server.beginnings.foresight import Expected
from omlx.server.beginnings.prewarmer import Tokenized
from omlx.server.beginnings.store import Known
from omlx.server.services import Forecast
from omlx.settings.layers import Layer, Source, resolve
from omlx.settings.schema import Scope, Settings, Value, table
from tests.server.running import TARGET


def forecast(*texts: str) -> Forecast:
    messages = tuple({"role": "system", "content": text} for text in texts)
    known = Known("m", Beginning(messages, (), {}), 2, "agent/1", 1e9)
    tokenized = Tokenized((1,) * 600, (400,))
    return Forecast(Expected(known, known.beginning), tokenized, PromptForecast(600, 0.02))


@pytest.mark.parametrize(
    ("texts", "words"), [(("You  edit\nprograms.", "And more."), "You edit programs."), ((), "")]
)
def test_it_begins_with_its_first_words(texts: tuple[str, ...], words: str) -> None:
    assert first_words(forecast(*texts)) == words
    (allowed,) = beginning_rows([forecast(*texts)], shows_prompts=True)
    assert (allowed.client, allowed.words, allowed.forecast.tokens) == ("agent/1", words, 600)
    (hidden,) = beginning_rows([forecast(*texts)], shows_prompts=False)
    assert hidden == replace(allowed, words="")


def test_long_texts_are_cut() -> None:
    words = first_words(forecast("a" * 500))
    assert (len(words), words[-2:]) == (MAX_CHARACTERS, "a…")


def test_it_is_warm_once_all_of_it_is_cached() -> None:
    cold = replace(forecast("a"), now=PromptForecast(599, None))
    rows = [forecast("a"), cold, replace(cold, now=None)]
    seen = [(row.uncached, row.first_token_s) for row in rows]
    assert seen == [(0, 0.02), (1, None), (None, None)]


def test_a_row_says_what_is_to_be_computed_now_and_after_a_change() -> None:
    partly = replace(forecast("a"), now=PromptForecast(450, None))
    assert (partly.uncached, partly.changing, partly.expected.foreseen) == (150, 200, False)


def test_a_busy_engine_leaves_its_figures_open() -> None:
    record = replace(forecast("a"), now=None).to_json()
    assert (record["tokens"], record["cached_tokens"], record["first_token_s"]) == (600, None, None)
    assert (record["uncached_tokens"], record["changing_tokens"]) == (None, 200)


ENTRY = ModelEntry("org/model", Path("/models/org/model"), "home")
STATS = PrefixStats(None, 500, 2000, 64, 3, 1, 120, 0, {"rows": 4}, {"rows": 2, "window": 1}, 4, 1)
REQUEST = RequestStats(100, 60, 8, 0.0, 1.0, 1.0, 1, {}, Reason("spec.off.requested"))


def card(stats: PrefixStats | None, *recent: RequestStats) -> PrefixCard:
    status = ModelStatus(State.READY)
    return prefix_card(ModelSnapshot(ENTRY, status, recent=recent, prefixes=stats))


def facts(stats: PrefixStats, *recent: RequestStats) -> list[str]:
    """The figures that the card shows."""
    html = render("models/prefixes_status.html", "en", view=card(stats, *recent))
    return [re.sub("<.*?>", "", fact).strip() for fact in re.findall("<dd>(.*?)</dd>", html)]


def hint(stats: PrefixStats | None) -> str:
    html = render("models/prefixes_status.html", "en", view=card(stats))
    (text,) = re.findall('<p class="hint[^>]*>(.*?)</p>', html)
    return str(text)


def test_a_model_that_is_not_in_memory_has_no_cache() -> None:
    assert card(None, REQUEST) == PrefixCard("org/model", share=0.6)
    assert hint(None) == catalog()["ui.prefixes.unloaded"]


def test_a_cache_that_is_off_has_a_reason() -> None:
    off = Reason("prefix.off.no_room")
    assert hint(replace(STATS, off=off)) == off.message


def test_prompts_and_evicted_pieces_are_sums() -> None:
    assert card(STATS) == PrefixCard("org/model", STATS)
    assert facts(STATS) == ["64", "3 of 4 prompts", "120", "3"]


def test_the_share_counts_all_tokens_of_recent_prompts() -> None:
    short = replace(REQUEST, prompt_n=20, cached_n=0)
    assert card(STATS, REQUEST, short).share == 0.5
    assert "50\u202f%" in facts(STATS, REQUEST, short)[2]


def test_recurrent_states_are_counted_if_there_are_any() -> None:
    shown = facts(replace(STATS, stored={"rows": 4, "state": 5}, states_used=2))
    assert len(shown) == 5
    assert re.findall(r"\d+", shown[-1]) == ["5", "2"]


def test_a_cache_that_refused_every_insertion_has_a_warning() -> None:
    assert (
        hint(replace(STATS, refused=4))
        == Reason("prefix.stored_none", {"asked": 4, "limit": 2000}).message
    )


CONFIG = {"model_type": "llama", "max_position_embeddings": 4096}


def checkpoint(directory: Path, model: nn.Module, **config: object) -> ModelEntry:
    directory.mkdir(parents=True)
    mx.save_safetensors(
        str(directory / "model.safetensors"), dict(tree_flatten(model.parameters()))
    )
    (directory / "config.json").write_text(json.dumps(CONFIG | config))
    return ModelEntry("org/model", directory, "home")


@pytest.mark.parametrize(("group_size", "bits"), [(32, 8), (64, 4), (128, 2)])
def test_quantized_weights_count_as_what_they_stand_for(
    tmp_path: Path, group_size: int, bits: int
) -> None:
    layers = nn.Sequential(nn.Linear(256, 128), nn.Linear(128, 64, bias=False), nn.RMSNorm(64))
    dense = checkpoint(tmp_path / "dense", layers)
    nn.quantize(layers, group_size=group_size, bits=bits)
    quantization = {"group_size": group_size, "bits": bits}
    quantized = checkpoint(tmp_path / "quantized", layers, quantization=quantization)
    count = 256 * 128 + 128 + 128 * 64 + 64
    assert checkpoint_facts(dense) == CheckpointFacts(count, 4096, longest_context=4096)
    assert checkpoint_facts(quantized) == CheckpointFacts(count, 4096, longest_context=4096)


def test_a_real_model_has_its_facts() -> None:
    entry = ModelEntry(TARGET, BUNDLED / TARGET, "bundled")
    facts = checkpoint_facts(entry)
    assert facts.parameters is not None
    assert 1_000_000 < facts.parameters < 10_000_000
    assert facts.context_length == 4096


def test_a_broken_or_unusable_model_has_none(tmp_path: Path) -> None:
    entry = ModelEntry("org/model", tmp_path, "home")
    assert checkpoint_facts(entry) == NO_FACTS
    (tmp_path / "model.safetensors").write_bytes(b"no header")
    assert checkpoint_facts(entry) == NO_FACTS
    unusable = ModelEntry(TARGET, BUNDLED / TARGET, "bundled", Status.SKIPPED)
    assert checkpoint_facts(unusable) == NO_FACTS


NO_DRAFTS = DraftPicker(none_chosen=True, without=None, fit=[], unfit=[])


def speculated(
    configured: SpeculationConfig, stored: dict[str, Value], **inherited: Any
) -> SpeculationCard:
    own = Layer(Source.MODEL, stored)
    settings = setting_views(Scope.MODEL, resolve([own]), own)
    return speculation_card(configured, settings, Settings(**inherited), NO_DRAFTS)


def test_the_switch_shows_the_strategy_in_effect_and_the_select_the_stored_one() -> None:
    view = speculated(SpeculationConfig(), {}, draft_model="org/small")
    assert (view.on, view.strategy, view.inherited) == (True, "", "auto")
    assert (view.inherits_draft, view.custom) == (True, None)

    view = speculated(SpeculationConfig(strategy=parse("off")), {"speculation": "off"})
    assert (view.on, view.strategy) == (False, "off")
    assert (view.inherits_draft, view.custom) == (False, None)

    custom = "ngram:m=8;draft"
    configured = SpeculationConfig(strategy=parse(custom))
    view = speculated(configured, {"speculation": custom}, speculation="off")
    assert (view.on, view.strategy, view.inherited) == (True, custom, "off")
    assert view.custom == custom


def test_a_reason_that_the_picker_shows_is_not_repeated() -> None:
    absent = Reason("draft.not_here", {"draft": "org/gone"})
    ceiling = Reason("spec.off.no_draft")
    assert speculated(SpeculationConfig(reason=absent), {}).reason is None
    assert speculated(SpeculationConfig(reason=ceiling), {}).reason == ceiling


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
