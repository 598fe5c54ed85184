"""The card of the prefix cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from omlx.admin.models.model_snapshot import ModelSnapshot
from omlx.admin.models.prefix_card import PrefixCache, PrefixCard, States, prefix_card
from omlx.errors import Reason
from omlx.models.catalog.entry import ModelEntry
from omlx.models.pool.resident import ModelStatus, State
from omlx.records import PrefixStats, RequestStats

ENTRY = ModelEntry("org/model", Path("/models/org/model"), "home")
STATS = PrefixStats(None, 500, 2000, 64, 3, 1, 120, 0, {"rows": 4}, {"rows": 2, "window": 1}, 4, 1)
CACHE = PrefixCache(STATS, share=None, states=None, warning=None)
REQUEST = RequestStats(100, 60, 8, 0.0, 1.0, 1.0, 1, {}, Reason("spec.off.requested"))


def card(stats: PrefixStats | None, *recent: RequestStats) -> PrefixCard:
    status = ModelStatus(State.READY)
    return prefix_card(ModelSnapshot(ENTRY, status, recent=recent, prefixes=stats))


def test_a_model_that_is_not_in_memory_has_no_cache() -> None:
    assert card(None, REQUEST) == PrefixCard("org/model")


def test_a_cache_that_is_off_has_a_reason() -> None:
    off = Reason("prefix.off.no_room")
    assert card(replace(STATS, off=off)) == PrefixCard("org/model", off=off)


def test_prompts_and_evicted_pieces_are_sums() -> None:
    shown = card(STATS)
    assert shown == PrefixCard("org/model", CACHE)
    assert shown.cache is not None
    assert (shown.cache.prompts, shown.cache.evicted) == (4, 3)


def test_the_share_counts_all_tokens_of_recent_prompts() -> None:
    short = replace(REQUEST, prompt_n=20, cached_n=0)
    assert card(STATS, REQUEST, short).cache == replace(CACHE, share=0.5)


def test_recurrent_states_are_counted_if_there_are_any() -> None:
    stats = replace(STATS, stored={"rows": 4, "state": 5}, states_used=2)
    assert card(stats).cache == replace(CACHE, stats=stats, states=States(5, 2))


def test_a_cache_that_refused_every_insertion_has_a_warning() -> None:
    stats = replace(STATS, refused=4)
    warning = Reason("prefix.stored_none", {"asked": 4, "limit": 2000})
    assert card(stats).cache == replace(CACHE, stats=stats, warning=warning)
