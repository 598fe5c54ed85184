"""Missing drafts: used once they arrive, fetched if the settings say so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from omlx.engine.thread import EngineThread
from omlx.errors import Reason
from omlx.models.watchers import DraftWatcher
from omlx.settings.schema import Settings
from tests.models.drafts import (
    BIG,
    SMALL,
    FakeFetch,
    add_draft,
    add_partial_draft,
    broken,
    draft_state,
    draft_states,
    folder,
    scan,
)
from tests.models.pools import make_pool

__all__ = ["broken", "folder"]


def test_a_declared_draft_on_disk_is_loaded(engine: EngineThread, folder: Path) -> None:
    add_draft(folder)
    fetch = FakeFetch(folder)
    assert draft_states(engine, folder, fetch, draft_download="auto") == [SMALL] * 3
    assert fetch.references == []


@pytest.mark.parametrize(
    "settings", [{}, {"draft_model": SMALL, "draft_download": "auto"}], ids=["declared", "named"]
)
def test_a_draft_that_arrives_is_loaded(
    engine: EngineThread, folder: Path, settings: dict[str, str]
) -> None:
    fetch = FakeFetch(folder)
    seen = draft_states(engine, folder, fetch, arrives=True, **settings)
    assert seen == ["draft.not_here", SMALL, SMALL]
    assert fetch.references == []


@pytest.mark.parametrize(("arrives", "choice"), [(True, "ask"), (False, "auto")])
def test_a_partial_draft_is_loaded_once_it_is_complete(
    engine: EngineThread, folder: Path, arrives: bool, choice: str
) -> None:
    add_partial_draft(folder)
    fetch = FakeFetch(folder)
    seen = draft_states(engine, folder, fetch, arrives=arrives, draft_download=choice)
    assert seen == ["draft.unfit.half_download", SMALL, SMALL]
    assert len(fetch.references) == (not arrives)


@pytest.mark.parametrize(("choice", "asked"), [("ask", 0), ("never", 0), ("auto", 1)])
def test_a_missing_draft_is_fetched_only_if_configured(
    engine: EngineThread, folder: Path, choice: str, asked: int
) -> None:
    fetch = FakeFetch(folder)
    after = SMALL if asked else "draft.not_here"
    seen = draft_states(engine, folder, fetch, draft_download=choice)
    assert seen == ["draft.not_here", after, after]
    assert len(fetch.references) == asked


@pytest.mark.parametrize("strategy", ["off", "ngram"])
def test_a_draft_that_the_strategy_does_not_use_is_not_fetched(
    engine: EngineThread, folder: Path, strategy: str
) -> None:
    fetch = FakeFetch(folder)
    plain = ["spec.off.strategy"] * 3
    assert draft_states(engine, folder, fetch, draft_download="auto", speculation=strategy) == plain
    assert fetch.references == []


async def test_a_failed_download_is_tried_once_and_reported(
    engine: EngineThread, folder: Path
) -> None:
    failure = Reason("pull.unreachable", {"detail": "no network"})
    fetch = FakeFetch(folder, failure)

    pool = make_pool(engine, scan(folder), Settings(draft_download="auto"), default=BIG)
    watcher = DraftWatcher(pool, lambda: scan(folder), fetch)
    (await pool.lease()).release()
    missing = pool.speculation(BIG).missing_draft
    assert (missing.size_bytes, missing.failed) == (1234, None)
    await watcher.check()
    await watcher.check()
    missing = pool.speculation(BIG).missing_draft
    assert (missing.failed, len(fetch.references)) == (failure, 1)


async def test_the_draft_is_loaded_when_the_model_is_idle(
    engine: EngineThread, folder: Path
) -> None:
    pool = make_pool(engine, scan(folder), Settings(), default=BIG)
    lease = await pool.lease()
    add_draft(folder)
    change = asyncio.create_task(
        DraftWatcher(pool, lambda: scan(folder), FakeFetch(folder)).check()
    )
    second = await pool.lease()
    assert second.served.draft is None
    assert pool.speculation(BIG).missing_draft is not None
    lease.release()
    second.release()
    await change
    (third := await pool.lease()).release()
    assert third.served.draft == SMALL


@pytest.mark.parametrize("how", ["weights", "tokenizer"])
async def test_an_unreadable_draft_is_tried_again_once_its_files_change(
    engine: EngineThread, broken: Path
) -> None:
    pool = make_pool(engine, scan(broken), Settings(), default=BIG)
    watcher = DraftWatcher(pool, lambda: scan(broken), FakeFetch(broken))
    (await pool.lease()).release()
    await watcher.check()
    first = pool.residents.find(BIG)
    await watcher.check()
    assert pool.residents.find(BIG) is first
    assert draft_state(pool) == "spec.off.draft_failed"
    add_draft(broken)
    await watcher.check()
    assert draft_state(pool) == SMALL
