"""Which models can draft for a target: entries first, then tokenizers, each pair once."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from omlx.admin.models.drafts import MAX_AWAITED, DraftCompatibility
from omlx.errors import Reason
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.models.package.compatibility import Tokenizer
from omlx.models.package.tokenizer import read_tokenizer
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
