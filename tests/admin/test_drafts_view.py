"""The picker of drafts: what comes first, what is said of each, what a choice would cost."""

from __future__ import annotations

from pathlib import Path

from omlx.admin.models.drafts_view import Candidate, DraftsView, Result, drafts_view, results_of
from omlx.admin.models.view import Memory
from omlx.errors import Reason
from omlx.models.catalog.entry import ModelEntry
from omlx.records import DrafterStats, RequestStats

BIG = ModelEntry("org/big", Path("/m/big"), "home", size_bytes=800)
SMALL = ModelEntry("org/small", Path("/m/small"), "home", size_bytes=100)
MIDDLE = ModelEntry("middle", Path("/m/middle"), "home", size_bytes=300)
HEAD = ModelEntry("org/head", Path("/m/head"), "home", size_bytes=10)
MEMORY = Memory(limit_bytes=1000, used_bytes=0)
NO_HEAD = Reason("draft.unfit.head_only", {"draft": "org/head", "kind": "EAGLE"})


def answer(speedup: float | None, **accepted: int) -> RequestStats:
    drafters = {name: DrafterStats(10, count) for name, count in accepted.items()}
    return RequestStats(1, 0, 1, 0.0, 1.0, 1.0, 1, drafters, Reason("spec.on"), speedup=speedup)


def test_drafts_that_fit_come_by_size_and_then_those_that_do_not() -> None:
    verdicts = {SMALL.id: None, HEAD.id: NO_HEAD}
    recent = [answer(1.1, ngram=2)]
    view = drafts_view(
        BIG,
        [MIDDLE, HEAD, SMALL],
        verdicts,
        recent,
        MEMORY,
        here={SMALL.id},
        chosen=MIDDLE.id,
        declared=SMALL.id,
    )
    assert view == DraftsView(
        none_chosen=False,
        without=Result(1.1, 0.2),
        fit=[
            Candidate("org/small", "small", "org", 100, 0, True, chosen=False, declared=True),
            Candidate(
                "middle", "middle", "", 300, 300, False, chosen=True, declared=False, checked=False
            ),
        ],
        unfit=[
            Candidate(
                "org/head",
                "head",
                "org",
                10,
                10,
                True,
                chosen=False,
                declared=False,
                reason=NO_HEAD,
            )
        ],
    )


def test_a_draft_that_is_named_and_not_here_is_shown_with_the_reason() -> None:
    absent = Reason("draft.not_here", {"draft": "org/gone:4bit"})
    view = drafts_view(BIG, [], {}, [], MEMORY, chosen=None, declared=None, missing=absent)
    gone = Candidate(
        "org/gone:4bit", "gone:4bit", "org", 0, 0, True, chosen=True, declared=False, reason=absent
    )
    assert view == DraftsView(none_chosen=False, without=None, fit=[], unfit=[], missing=gone)


def test_without_a_draft_none_is_chosen() -> None:
    assert drafts_view(BIG, [], {}, [], MEMORY, chosen=None, declared=None) == DraftsView(
        True, None, [], []
    )


def test_a_result_is_of_answers_that_one_drafter_had_alone() -> None:
    recent = [
        answer(1.5, a=5),
        answer(1.7, a=9),
        answer(3.0, a=1, b=1),
        answer(None, b=4),
        answer(2.0),
    ]
    assert results_of(recent) == {"a": Result(1.6, 0.7), "b": Result(None, 0.4)}
