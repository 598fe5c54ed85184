"""Which models can draft for a target: entries first, then tokenizers, each pair once."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omlx.admin.models.draft_picker import (
    BEST_SIZE,
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
from omlx.admin.models.drafts import MAX_AWAITED, DraftCompatibility
from omlx.errors import Reason
from omlx.models.catalog.discovery import BUNDLED, Folder, scan_places
from omlx.models.catalog.files import ModelFiles
from omlx.models.catalog.reference import Tokenizer
from omlx.models.catalog.registry import ModelEntry, Status
from omlx.models.catalog.tokenizer import read_tokenizer
from omlx.records import DrafterStats, RequestStats
from tests.server.running import DRAFT, HYBRID, TARGET

BIG = ModelEntry(TARGET, BUNDLED / TARGET, "bundled", size_bytes=9)
SMALL = ModelEntry(DRAFT, BUNDLED / DRAFT, "bundled", size_bytes=2)
EQUAL = ModelEntry(HYBRID, BUNDLED / HYBRID, "bundled", size_bytes=9)
HEAD = ModelEntry(
    "org/head",
    Path("/nowhere"),
    "home",
    Status.SKIPPED,
    Reason("model.head_only", {"kind": "EAGLE"}),
)
BROKEN = ModelEntry(
    "org/broken", Path("/nowhere/else"), "home", Status.SKIPPED, Reason("model.no_weights")
)


@pytest.fixture
def other(tmp_path: Path) -> ModelEntry:
    """A model of the same size with another vocabulary."""
    folder = tmp_path / "other"
    shutil.copytree(BUNDLED / DRAFT, folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    first, second = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(content), encoding="utf-8")
    return ModelEntry("org/other", folder, "home", size_bytes=2)


def test_every_draft_gets_its_result(other: ModelEntry) -> None:
    drafts = [SMALL, EQUAL, HEAD, BROKEN, other]
    results = asyncio.run(DraftCompatibility(timeout_s=60).of(BIG, drafts))
    codes = {name: reason and reason.code for name, reason in results.items()}
    assert codes == {
        DRAFT: None,
        HYBRID: "draft.unfit.not_smaller",
        "org/head": "draft.unfit.head_only",
        "org/broken": "model.no_weights",
        "org/other": "draft.unfit.vocabulary",
    }


def test_a_drafter_is_compared_by_its_config_alone(tmp_path: Path) -> None:
    for size in (256, 512):
        folder = tmp_path / f"org/eagle{size}"
        folder.mkdir(parents=True)
        layer = {"hidden_size": size, "vocab_size": 2048}
        config = {"speculators_model_type": "eagle3", "transformer_layer_config": layer}
        (folder / "config.json").write_text(json.dumps(config))
    drafters = list(scan_places([Folder("home", tmp_path)]).entries)
    results = asyncio.run(DraftCompatibility(timeout_s=60, read=unread).of(BIG, drafters))
    codes = {name: reason and reason.code for name, reason in results.items()}
    assert codes == {"org/eagle256": None, "org/eagle512": "draft.unfit.head"}


def unread(entry: ModelEntry) -> Tokenizer:
    raise AssertionError(f"{entry.id} has no tokenizer of its own")


def test_a_draft_whose_tokenizer_has_changed_is_compared_again(other: ModelEntry) -> None:
    checks = DraftCompatibility(timeout_s=60)
    assert asyncio.run(checks.of(BIG, [other]))[other.id] is not None
    shutil.copyfile(BUNDLED / DRAFT / "tokenizer.json", other.path / "tokenizer.json")
    assert other.files == ModelFiles.recent(other.path)  # discovery has looked
    assert asyncio.run(checks.of(BIG, [other])) == {other.id: None}


def test_a_check_that_takes_too_long_is_finished_later_and_not_repeated() -> None:
    read: list[str] = []
    requested = threading.Event()

    def counted(entry: ModelEntry) -> Tokenizer:
        assert requested.wait(60)
        read.append(entry.id)
        return read_tokenizer(entry)

    async def look() -> None:
        checks = DraftCompatibility(timeout_s=0, read=counted)
        assert SMALL.id not in await checks.of(BIG, [HEAD, SMALL])
        requested.set()
        while SMALL.id not in await checks.of(BIG, [HEAD, SMALL]):
            pass
        assert (await checks.of(BIG, [SMALL])) == {SMALL.id: None}

    asyncio.run(look())
    assert read == [TARGET, DRAFT]


def test_a_page_does_not_wait_for_the_checks_of_many_drafts() -> None:
    answered = threading.Event()
    drafts = [
        HEAD,
        *(replace(SMALL, id=f"org/{n}", path=Path(f"/{n}")) for n in range(MAX_AWAITED + 1)),
    ]

    def read(entry: ModelEntry) -> Tokenizer:
        assert answered.wait(60), "the page waits for the tokenizers"
        return read_tokenizer(BIG)

    async def look() -> None:
        checks = DraftCompatibility(timeout_s=60, read=read)
        assert list(await checks.of(BIG, drafts)) == [HEAD.id]
        answered.set()
        while len(await checks.of(BIG, drafts)) < len(drafts):
            pass

    asyncio.run(look())


def test_what_entries_tell_is_known_without_a_tokenizer() -> None:
    def read(entry: ModelEntry) -> Tokenizer:
        raise AssertionError("a tokenizer is read")

    checks = DraftCompatibility(read=read)
    known = checks.without_tokenizers(BIG, [HEAD, SMALL])
    assert list(known) == [HEAD.id]


LARGE = ModelEntry("org/big", Path("/m/big"), "home", size_bytes=800)
LITTLE = ModelEntry("org/small", Path("/m/small"), "home", size_bytes=100)
MIDDLE = ModelEntry("middle", Path("/m/middle"), "home", size_bytes=300)
SMALL_HEAD = ModelEntry("org/head", Path("/m/head"), "home", size_bytes=10)
LIMIT_BYTES = 1000
NO_HEAD = Reason("draft.unfit.head_only", {"draft": "org/head", "kind": "EAGLE"})


def request(speedup: float | None, **accepted: int) -> RequestStats:
    drafters = {name: DrafterStats(100, 10 * count) for name, count in accepted.items()}
    return RequestStats(1, 0, 100, 0.0, 1.0, 1.0, 1, drafters, Reason("spec.on"), speedup=speedup)


def test_fitting_drafts_are_ranked_before_those_that_do_not_fit() -> None:
    evidence = DraftEvidence(
        {LITTLE.id: None, SMALL_HEAD.id: NO_HEAD},
        nbytes={LARGE.id: 900},
        recent=[request(1.1, ngram=2)],
        in_memory={LITTLE.id},
    )
    choice = DraftChoice(chosen=MIDDLE.id, declared=LITTLE.id)
    picker = draft_picker(LARGE, [MIDDLE, SMALL_HEAD, LITTLE], evidence, choice, LIMIT_BYTES)
    why = Reason("ui.drafts.why.package")
    assert picker == DraftPicker(
        none_chosen=False,
        without=DrafterResult(1.1, 0.2),
        fit=[
            DraftCandidate("org/small", 100, 0.125, declared=True, why=why),
            DraftCandidate("middle", 300, 0.375, 300, fits=False, chosen=True, checked=False),
        ],
        unfit=[DraftCandidate("org/head", 10, 0.0125, 10, reason=NO_HEAD)],
    )


def ranked(shares: dict[str, float], **more: Any) -> DraftPicker:
    """The picker of drafts with these parts of their target's parameters, all compatible."""
    drafts = [ModelEntry(name, Path("/m") / name, "home", size_bytes=10) for name in shares]
    evidence = DraftEvidence(dict.fromkeys(shares), shares=shares, **more)
    return draft_picker(LARGE, drafts, evidence, DraftChoice(), LIMIT_BYTES)


def test_the_recommended_draft_is_of_the_best_size_and_of_no_similar_one() -> None:
    picker = ranked({"same": 1.0, "tiny": 0.001, "good": BEST_SIZE * 1.1, "half": 0.5})
    assert [draft.id for draft in picker.fit] == ["good", "half", "tiny", "same"]
    assert [draft.why for draft in picker.fit[1:]] == [None] * 3
    assert picker.fit[0].why == Reason("ui.drafts.why.size", {"times": 11})
    assert [draft.too_similar for draft in picker.fit] == [False, False, False, True]
    assert all(draft.why is None for draft in ranked({"same": 0.9}).fit)


def test_a_measured_gain_comes_first_and_a_measured_loss_last() -> None:
    trials = {
        "tiny": TrialSpeedup(2.5, stale=False),
        "good": TrialSpeedup(0.9, stale=False),
        "old": TrialSpeedup(9.0, stale=True),
    }
    picker = ranked({"good": BEST_SIZE, "tiny": 0.001, "old": 0.4}, trials=trials)
    assert [draft.id for draft in picker.fit] == ["tiny", "old", "good"]
    assert picker.fit[0].why == Reason("ui.drafts.why.trial", {"speedup": 2.5})
    assert all(draft.why is None for draft in ranked({"good": 0.1}, trials=trials).fit)


def test_a_drafter_trained_for_the_target_comes_before_other_models() -> None:
    head = ModelEntry("head", Path("/m/head"), "home", size_bytes=2, drafter="mtp")
    drafts = [LITTLE, head]
    evidence = DraftEvidence(dict.fromkeys((LITTLE.id, head.id)))
    picker = draft_picker(LARGE, drafts, evidence, DraftChoice(), LIMIT_BYTES)
    assert [draft.id for draft in picker.fit] == [head.id, LITTLE.id]
    assert picker.fit[0].why == Reason("ui.drafts.why.trained")


def test_a_check_moves_no_draft_and_leaves_none_out() -> None:
    drafts = [LITTLE, MIDDLE, SMALL_HEAD]
    arguments = (DraftChoice(), LIMIT_BYTES, drafts)
    before = draft_picker(LARGE, drafts, DraftEvidence(), *arguments)
    assert before.query == "?keep=org%2Fsmall&keep=org%2Fhead&keep=middle"
    assert all(draft.selectable and draft.why is None for draft in before.fit)
    known = DraftEvidence({LITTLE.id: None, MIDDLE.id: None, SMALL_HEAD.id: NO_HEAD})
    kept = {draft.id for draft in drafts}
    after = draft_picker(LARGE, drafts, known, *arguments, kept)
    assert [draft.id for draft in after.fit] == [draft.id for draft in before.fit]
    assert [draft.selectable for draft in after.fit] == [True, False, True]
    assert (after.unfit, after.query) == ([], "")


def test_a_configured_draft_that_is_not_here_is_shown_with_the_reason() -> None:
    absent = Reason("draft.not_here", {"draft": "org/gone:4bit"})
    picker = draft_picker(LARGE, [], DraftEvidence(), DraftChoice(missing=absent), LIMIT_BYTES)
    gone = DraftCandidate("org/gone:4bit", chosen=True, reason=absent)
    assert picker == DraftPicker(none_chosen=False, without=None, fit=[], unfit=[], missing=gone)


def test_without_a_draft_none_is_chosen() -> None:
    picker = draft_picker(LARGE, [], DraftEvidence(), DraftChoice(), LIMIT_BYTES)
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
        {SMALL_HEAD.id: NO_HEAD, "n/01": None},
        trials={MIDDLE.id: TrialSpeedup(1.5, stale=False)},
        in_memory={SMALL_HEAD.id},
    )
    drafts = [LARGE, *many, MIDDLE, SMALL_HEAD]
    choice = DraftChoice(chosen=LARGE.id)
    first = first_drafts(drafts, evidence, choice)
    assert [draft.id for draft in first[:3]] == [MIDDLE.id, LARGE.id, "n/01"]
    assert len(first) == FIRST_DRAFTS
    picker = draft_picker(LARGE, drafts, evidence, choice, LIMIT_BYTES, first)
    smallest = [f"n/{size:02d}" for size in range(1, FIRST_DRAFTS - 1)]
    assert [draft.id for draft in picker.fit] == [MIDDLE.id, *reversed(smallest), LARGE.id]
    assert picker.more == FIRST_DRAFTS + 1
    assert draft_picker(LARGE, drafts, evidence, choice, LIMIT_BYTES).more == 0
