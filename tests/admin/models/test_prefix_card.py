"""The card of the prefix cache."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from omlx.admin.models.model_page import PrefixCard, prefix_card
from omlx.admin.models.model_snapshot import ModelSnapshot
from omlx.admin.web.rendering import render
from omlx.catalog import catalog
from omlx.errors import Reason
from omlx.models.catalog.entry import ModelEntry
from omlx.models.pool.resident import ModelStatus, State
from omlx.records import PrefixStats, RequestStats

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
