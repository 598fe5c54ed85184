"""Drafts that cannot be used: a reason for the configured one, an error for a requested one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from omlx.engine.speculation.strategy import AUTO, DRAFT
from omlx.engine.thread import EngineThread
from omlx.errors import BadRequest, ModelError
from omlx.models.catalog.package import FILE
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.load_weights import LoadSteps, load_steps
from omlx.models.pool.pool import Pool
from omlx.settings.schema import Settings
from tests.lanes import few
from tests.models.drafts import (
    BIG,
    ROPE_WARNING,
    SMALL,
    FakeFetch,
    add_draft,
    add_partial_draft,
    break_draft,
    broken,
    draft_states,
    folder,
    scan,
)
from tests.models.pools import make_pool
from tests.refusals import refused

__all__ = ["broken", "folder"]


@pytest.mark.parametrize(("no_draft", "read"), [(True, {BIG}), (False, {BIG, SMALL})])
async def test_no_draft_reads_no_draft_weights(
    engine: EngineThread, folder: Path, no_draft: bool, read: set[str]
) -> None:
    add_draft(folder)
    opened: set[str] = set()

    settings = Settings(no_draft=no_draft, draft_model=SMALL)
    parts = {"default": BIG, "report": lambda entry, _: opened.add(entry.id)}
    pool = make_pool(engine, scan(folder), settings, **parts)
    (lease := await pool.lease(strategy=DRAFT)).release()
    assert (lease.served.draft is None) is no_draft
    if no_draft:
        with pytest.raises(BadRequest, match="--no-draft"):
            await pool.lease(draft=SMALL)
    assert opened == read


REASONS = {
    "weights": "spec.off.draft_failed",
    "config": "spec.off.draft_failed",
    "tokenizer": "spec.off.draft_failed",
    "unknown-token": "spec.off.draft_failed",
    "passes": "spec.off.draft_failed",
    "rewind": "spec.off.cache",
    "vocabulary": "draft.unfit.vocabulary",
    "head": "draft.unfit.head_only",
    "itself": "draft.unfit.same_model",
    "copy": "draft.unfit.not_smaller",
    "package": "package.missing",
    "gguf": "draft.unfit.gguf",
}
"""Why the model has no draft, by the way in which it is broken."""


@pytest.mark.filterwarnings(ROPE_WARNING)
@pytest.mark.parametrize("how", few(REASONS, *[*REASONS][::4]))
def test_a_broken_draft_does_not_stop_loading(engine: EngineThread, broken: Path, how: str) -> None:
    assert (
        draft_states(engine, broken, FakeFetch(broken), draft_download="auto") == [REASONS[how]] * 3
    )


@pytest.mark.filterwarnings(ROPE_WARNING)
@pytest.mark.parametrize(
    "how", few(("passes", "rewind", "unknown-token", "copy"), "rewind", "copy")
)
async def test_a_failed_draft_leaves_memory_and_fails_requests_that_name_it(
    engine: EngineThread, broken: Path, how: str
) -> None:
    pool = make_pool(engine, scan(broken), Settings(), default=BIG)
    for _ in range(2):  # the second time, a request has named it meanwhile
        (lease := await pool.lease()).release()
        assert (lease.served.draft, lease.served.no_draft_reason.code) == (None, REASONS[how])
        assert pool.status(BIG).draft is None
        assert pool.residents.weights_of(scan(broken).get_usable(SMALL), "auto") is None
        code = "model.tokenizer" if how == "unknown-token" else REASONS[how]
        with refused((BadRequest, ModelError), code) as caught:
            await pool.lease(draft=SMALL)
        assert caught.value.param == "draft_model"


@pytest.mark.parametrize("how", ["passes", "weights", "vocabulary"])
async def test_a_failure_is_repeated_at_once_until_the_folder_changes(
    engine: EngineThread, folder: Path, how: str
) -> None:
    (folder / BIG / FILE).unlink()
    add_draft(folder)
    break_draft(folder, how)
    opened: list[str] = []

    def read(entry: ModelEntry, *args: Any) -> LoadSteps:
        opened.append(entry.id)
        return load_steps(entry, *args)

    async def failure_of(pool: Pool) -> tuple[str, object]:
        with pytest.raises((BadRequest, ModelError)) as caught:
            await asyncio.wait_for(pool.lease(draft=SMALL), 60)
        return caught.value.code, caught.value.params

    pool = make_pool(engine, scan(folder), Settings(), default=BIG, read=read)
    (await pool.lease()).release()
    first = await failure_of(pool)
    opened.clear()
    lease = await pool.lease()
    assert await failure_of(pool) == first  # although an active request would delay another try
    lease.release()
    (await pool.lease(strategy=AUTO)).release()
    assert opened == []
    add_draft(folder)
    (lease := await pool.lease(draft=SMALL)).release()
    assert (lease.served.draft, opened) == (SMALL, [SMALL])


async def test_a_failure_does_not_outlast_a_rescan(engine: EngineThread, folder: Path) -> None:
    (folder / BIG / FILE).unlink()
    add_partial_draft(folder)

    pool = make_pool(engine, scan(folder), Settings(), default=BIG)
    (folder / SMALL / "model.safetensors.part").rename(folder / SMALL / "model.safetensors")
    with pytest.raises(BadRequest, match="incomplete"):
        await pool.lease(draft=SMALL)
    await pool.update_registry(scan(folder))
    (lease := await pool.lease(draft=SMALL)).release()
    assert lease.served.draft == SMALL


async def test_a_request_may_use_a_draft_that_is_inactive(
    engine: EngineThread, folder: Path
) -> None:
    add_draft(folder)

    pool = make_pool(engine, scan(folder), Settings(speculation="ngram"), default=BIG)
    seen = []
    for strategy in (None, AUTO, DRAFT, None):
        (lease := await pool.lease(strategy=strategy)).release()
        seen.append(lease.served.draft)
    with pytest.raises(BadRequest):
        await pool.lease(draft="../small")
    assert seen == [None, None, SMALL, SMALL]
