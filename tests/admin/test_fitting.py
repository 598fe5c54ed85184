"""Which models can draft for which: from their files first, then from their tokenizers, each pair once."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from pathlib import Path

import pytest

from omlx.admin.models.fitting import Fitting
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
    """A model whose tokens mean something else."""
    folder = tmp_path / "other"
    shutil.copytree(BUNDLED / DRAFT, folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    first, second = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(content), encoding="utf-8")
    return ModelEntry("org/other", folder, "home", size_bytes=2)


def test_each_gets_its_verdict(other: ModelEntry) -> None:
    verdicts = asyncio.run(Fitting(within_s=60).of(BIG, [SMALL, EQUAL, HEAD, BROKEN, other]))
    codes = {name: reason and reason.code for name, reason in verdicts.items()}
    assert codes == {
        DRAFT: None,
        HYBRID: "draft.unfit.not_smaller",
        "org/head": "draft.unfit.head_only",
        "org/broken": "model.no_weights",
        "org/other": "draft.unfit.vocabulary",
    }


def test_what_is_not_known_in_time_is_known_later_and_not_asked_again() -> None:
    read: list[str] = []
    asked = threading.Event()

    def counted(entry: ModelEntry) -> Tokenizer:
        assert asked.wait(60)
        read.append(entry.id)
        return read_tokenizer(entry)

    async def look() -> None:
        checks = Fitting(within_s=0, read=counted)
        assert SMALL.id not in await checks.of(BIG, [HEAD, SMALL])
        asked.set()
        while SMALL.id not in await checks.of(BIG, [HEAD, SMALL]):
            pass
        assert (await checks.of(BIG, [SMALL])) == {SMALL.id: None}

    asyncio.run(look())
    assert read == [TARGET, DRAFT]
