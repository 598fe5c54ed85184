"""The card of kept prefixes, as plain data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from omlx.admin.models.model_snapshot import Standing
from omlx.admin.models.prefixes_view import Kept, PrefixesView, States, prefixes_view
from omlx.errors import Reason
from omlx.models.catalog.entry import ModelEntry
from omlx.models.pool.resident import ModelStatus, State
from omlx.records import PrefixStats, RequestStats

ENTRY = ModelEntry("org/model", Path("/models/org/model"), "home")
REPORT = PrefixStats(None, 500, 2000, 64, 3, 1, 120, 0, {"rows": 4}, {"rows": 2, "window": 1}, 4, 1)
KEPT = Kept(500, 2000, 64, 3, 4, 120, None, 3, None, None)
ANSWER = RequestStats(100, 60, 8, 0.0, 1.0, 1.0, 1, {}, Reason("spec.off.requested"))


def standing(report: PrefixStats | None, *recent: RequestStats) -> Standing:
    return Standing(ENTRY, ModelStatus(State.READY), recent=recent, prefixes=report)


def test_a_model_that_is_not_in_memory_keeps_nothing() -> None:
    assert prefixes_view(standing(None, ANSWER)) == PrefixesView("org/model")


def test_why_nothing_is_kept() -> None:
    off = Reason("prefix.off.no_room")
    assert prefixes_view(standing(replace(REPORT, off=off))) == PrefixesView("org/model", off=off)


def test_what_is_kept_and_what_it_was_good_for() -> None:
    assert prefixes_view(standing(REPORT)) == PrefixesView("org/model", KEPT)


def test_the_share_is_that_of_all_tokens_of_the_newest_prompts() -> None:
    short = replace(ANSWER, prompt_n=20, cached_n=0)
    assert prefixes_view(standing(REPORT, ANSWER, short)).kept == replace(KEPT, share=0.5)


def test_recurrent_states_are_told_where_there_are_some() -> None:
    report = replace(REPORT, stored={"rows": 4, "state": 5}, states_used=2)
    assert prefixes_view(standing(report)).kept == replace(KEPT, states=States(5, 2))


def test_a_warning_where_nothing_fits() -> None:
    warning = Reason("prefix.stored_none", {"asked": 4, "limit": 2000})
    assert prefixes_view(standing(replace(REPORT, refused=4))).kept == replace(
        KEPT, warning=warning
    )
