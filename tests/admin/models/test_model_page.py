"""The list of beginnings that return."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from omlx.admin.models.model_page import (
    MAX_CHARACTERS,
    PrefixCard,
    beginning_rows,
    first_words,
    prefix_card,
)
from omlx.admin.models.model_snapshot import ModelSnapshot
from omlx.admin.web.rendering import render
from omlx.catalog import catalog
from omlx.engine.types import PromptForecast
from omlx.errors import Reason
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.served import ModelStatus, State
from omlx.records import PrefixStats, RequestStats
from omlx.server.beginnings.beginning import Beginning
from omlx.server.beginnings.foresight import Expected
from omlx.server.beginnings.prewarmer import Tokenized
from omlx.server.beginnings.store import Known
from omlx.server.services import Forecast


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
