"""The draft picker: order, memory, reasons and results of drafts."""

from __future__ import annotations

from pathlib import Path

from omlx.admin.models.drafts import (
    FIRST_DRAFTS,
    DraftCandidate,
    DraftChoice,
    DrafterResult,
    DraftEvidence,
    DraftPicker,
    TrialSpeedup,
    draft_picker,
    drafter_results,
    first_drafts,
    trial_speedups,
)
from omlx.errors import Reason
from omlx.models.catalog.entry import ModelEntry
from omlx.records import DrafterStats, RequestStats

BIG = ModelEntry("org/big", Path("/m/big"), "home", size_bytes=800)
SMALL = ModelEntry("org/small", Path("/m/small"), "home", size_bytes=100)
MIDDLE = ModelEntry("middle", Path("/m/middle"), "home", size_bytes=300)
HEAD = ModelEntry("org/head", Path("/m/head"), "home", size_bytes=10)
LIMIT_BYTES = 1000
NO_HEAD = Reason("draft.unfit.head_only", {"draft": "org/head", "kind": "EAGLE"})


def request(speedup: float | None, **accepted: int) -> RequestStats:
    drafters = {name: DrafterStats(10, count) for name, count in accepted.items()}
    return RequestStats(1, 0, 1, 0.0, 1.0, 1.0, 1, drafters, Reason("spec.on"), speedup=speedup)


def test_fitting_drafts_are_listed_by_size_before_those_that_do_not_fit() -> None:
    evidence = DraftEvidence(
        {SMALL.id: None, HEAD.id: NO_HEAD}, recent=[request(1.1, ngram=2)], in_memory={SMALL.id}
    )
    choice = DraftChoice(chosen=MIDDLE.id, declared=SMALL.id)
    picker = draft_picker(BIG, [MIDDLE, HEAD, SMALL], evidence, choice, LIMIT_BYTES)
    assert picker == DraftPicker(
        none_chosen=False,
        without=DrafterResult(1.1, 0.2),
        fit=[
            DraftCandidate("org/small", 100, declared=True),
            DraftCandidate("middle", 300, 300, fits=False, chosen=True, checked=False),
        ],
        unfit=[DraftCandidate("org/head", 10, 10, reason=NO_HEAD)],
    )


def test_a_configured_draft_that_is_not_here_is_shown_with_the_reason() -> None:
    absent = Reason("draft.not_here", {"draft": "org/gone:4bit"})
    picker = draft_picker(BIG, [], DraftEvidence(), DraftChoice(missing=absent), LIMIT_BYTES)
    gone = DraftCandidate("org/gone:4bit", chosen=True, reason=absent)
    assert picker == DraftPicker(none_chosen=False, without=None, fit=[], unfit=[], missing=gone)


def test_without_a_draft_none_is_chosen() -> None:
    picker = draft_picker(BIG, [], DraftEvidence(), DraftChoice(), LIMIT_BYTES)
    assert picker == DraftPicker(none_chosen=True, without=None, fit=[], unfit=[])


def test_a_result_counts_requests_in_which_one_drafter_was_alone() -> None:
    recent = [
        request(1.5, a=5),
        request(1.7, a=9),
        request(3.0, a=1, b=1),
        request(None, b=4),
        request(2.0),
    ]
    assert drafter_results(recent) == {"a": DrafterResult(1.6, 0.7), "b": DrafterResult(None, 0.4)}


def test_the_last_trial_of_a_draft_gives_its_speedup() -> None:
    stale = [{"code": "trial.stale.machine"}]
    results = {
        "org/small": {"record": {"overall": {"median": 1.7}}, "stale": stale},
        "org/silent": {"record": {"overall": None}, "stale": []},
    }
    assert trial_speedups(results) == {"org/small": TrialSpeedup(1.7, stale=True)}


def test_the_first_drafts_are_likely_ones_and_then_the_smallest() -> None:
    many = [
        ModelEntry(f"n/{size:02d}", Path(f"/m/{size}"), "home", size_bytes=size)
        for size in range(1, 2 * FIRST_DRAFTS)
    ]
    evidence = DraftEvidence(
        {HEAD.id: NO_HEAD, "n/01": None},
        trials={MIDDLE.id: TrialSpeedup(1.5, stale=False)},
        in_memory={HEAD.id},
    )
    drafts = [BIG, *many, MIDDLE, HEAD]
    choice = DraftChoice(chosen=BIG.id)
    first = first_drafts(drafts, evidence, choice)
    assert [draft.id for draft in first[:3]] == [MIDDLE.id, BIG.id, "n/01"]
    assert len(first) == FIRST_DRAFTS
    picker = draft_picker(BIG, drafts, evidence, choice, LIMIT_BYTES, first)
    assert [draft.id for draft in picker.fit] == [
        *(f"n/{size:02d}" for size in range(1, FIRST_DRAFTS - 1)),
        MIDDLE.id,
        BIG.id,
    ]
    assert picker.more == FIRST_DRAFTS + 1
    assert draft_picker(BIG, drafts, evidence, choice, LIMIT_BYTES).more == 0
