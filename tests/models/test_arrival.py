"""Drafts that packages declare, in the pool: on when they are here, opened by nobody else, noticed when they come."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from omlx.engine.strategy import AUTO, DRAFT
from omlx.engine.thread import EngineThread
from omlx.errors import BadRequest, ModelError, Reason
from omlx.models.catalog.discovery import BUNDLED, Registry, scan_places
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.places import Folder
from omlx.models.catalog.reference import Reference
from omlx.models.package.package import FILE
from omlx.models.pool.draft_watcher import DraftWatcher
from omlx.models.pool.load import WeightReading
from omlx.models.pool.load_weights import load_steps
from omlx.models.pool.pool import Pool
from omlx.settings.schema import Settings
from tests import zoo
from tests.models.pools import make_pool
from tests.zoo.folder import save_family

BIG, SMALL = "org/big", "org/small"
OLD_NAME = "ignore:.rope_scaling. is deprecated:FutureWarning"
"""Of transformers, for the config of one architecture."""


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineThread]:
    engine = EngineThread()
    engine.start()
    yield engine
    engine.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The demo target, whose package declares a draft that is not here."""
    shutil.copytree(BUNDLED / "omlx-demo/target", tmp_path / BIG)
    declare(tmp_path, SMALL)
    return tmp_path


def declare(folder: Path, draft: str) -> None:
    strategy = {"type": "draft-model", "draft_model": draft, "size_bytes": 1234}
    block = {"default": "one", "strategies": {"one": strategy}}
    (folder / BIG / FILE).write_text(json.dumps({"generation": {"speculative_decoding": block}}))


def bring(folder: Path) -> None:
    shutil.copytree(BUNDLED / "omlx-demo/draft", folder / SMALL, dirs_exist_ok=True)


def interrupt(folder: Path) -> None:
    """Leave what a download leaves that ended in the middle."""
    bring(folder)
    weights = folder / SMALL / "model.safetensors"
    weights.rename(f"{weights}.part")


def swap_two_tokens(tokenizer: Path) -> None:
    content = json.loads(tokenizer.read_text())
    vocabulary = content["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    tokenizer.write_text(json.dumps(content))


def know_no_unknown_word(tokenizer: Path) -> None:
    """It raises for the first word that is not in its vocabulary."""
    content = json.loads(tokenizer.read_text())
    content["model"] = {
        "type": "WordLevel",
        "vocab": content["model"]["vocab"],
        "unk_token": "<none>",
    }
    tokenizer.write_text(json.dumps(content))


def split_unevenly(draft: Path) -> None:
    """Make it a model whose weights can be loaded and whose passes raise: 6 heads over 4."""
    weights: dict[str, mx.array] = mx.load(str(draft / "model.safetensors"))
    halves = ("k_proj.weight", "v_proj.weight")
    cut = {
        name: array[: 4 * 32] if name.endswith(halves) else array for name, array in weights.items()
    }
    mx.save_safetensors(str(draft / "model.safetensors"), cut)
    config = json.loads((draft / "config.json").read_text())
    heads = {"num_attention_heads": 6, "num_key_value_heads": 4, "head_dim": 32}
    (draft / "config.json").write_text(json.dumps({**config, **heads}))


def look(folder: Path) -> Registry:
    return scan_places([Folder("here", folder)])


class Fetching:
    """Brings the draft, or says why it cannot; counts how often it was asked."""

    def __init__(self, folder: Path, failure: Reason | None = None) -> None:
        self.asked: list[Reference] = []
        self._folder = folder
        self._failure = failure

    async def __call__(self, reference: Reference) -> Reason | None:
        self.asked.append(reference)
        if self._failure is None:
            bring(self._folder)
        return self._failure


def drafts(
    engine: EngineThread, folder: Path, fetch: Fetching, brought: bool = False, **settings: object
) -> list[object]:
    """Who drafts for the model once it is loaded and after each of two looks; if `brought`, it comes between."""

    async def run() -> list[object]:
        pool = make_pool(engine, look(folder), Settings(**settings), default=BIG)
        arrivals = DraftWatcher(pool, lambda: look(folder), fetch)
        (await pool.lease()).release()
        assert pool.served is not None
        seen = [_state(pool)]
        for _ in range(2):
            if brought:
                bring(folder)
            await arrivals.check()
            seen.append(_state(pool))
        await asyncio.wrap_future(engine.call(lambda: engine.detach(BIG)))
        return seen

    return asyncio.run(run())


def _state(pool: Pool) -> object:
    assert pool.served is not None
    return pool.served.draft or (pool.served.no_draft.code if pool.served.no_draft else None)


def test_a_declared_draft_that_is_here_drafts(engine: EngineThread, folder: Path) -> None:
    bring(folder)
    fetch = Fetching(folder)
    assert drafts(engine, folder, fetch, draft_download="auto") == [SMALL] * 3
    assert fetch.asked == []


@pytest.mark.parametrize(
    "settings", [{}, {"draft_model": SMALL, "draft_download": "auto"}], ids=["declared", "named"]
)
def test_one_that_a_person_brings_turns_on(
    engine: EngineThread, folder: Path, settings: dict[str, str]
) -> None:
    fetch = Fetching(folder)
    assert drafts(engine, folder, fetch, brought=True, **settings) == [
        "draft.not_here",
        SMALL,
        SMALL,
    ]
    assert fetch.asked == []


@pytest.mark.parametrize(("brought", "choice"), [(True, "ask"), (False, "auto")])
def test_one_whose_download_was_interrupted_is_used_once_it_is_whole(
    engine: EngineThread, folder: Path, brought: bool, choice: str
) -> None:
    interrupt(folder)
    fetch = Fetching(folder)
    seen = drafts(engine, folder, fetch, brought=brought, draft_download=choice)
    assert seen == ["draft.unfit.half_download", SMALL, SMALL]
    assert len(fetch.asked) == (not brought)


@pytest.mark.parametrize(("choice", "asked"), [("ask", 0), ("never", 0), ("auto", 1)])
def test_one_that_is_missing_is_fetched_only_if_the_settings_say_so(
    engine: EngineThread, folder: Path, choice: str, asked: int
) -> None:
    fetch = Fetching(folder)
    after = SMALL if asked else "draft.not_here"
    assert drafts(engine, folder, fetch, draft_download=choice) == ["draft.not_here", after, after]
    assert len(fetch.asked) == asked


@pytest.mark.parametrize("strategy", ["off", "ngram"])
def test_one_that_the_strategy_leaves_out_is_not_fetched(
    engine: EngineThread, folder: Path, strategy: str
) -> None:
    fetch = Fetching(folder)
    plain = ["spec.off.strategy"] * 3
    assert drafts(engine, folder, fetch, draft_download="auto", speculation=strategy) == plain
    assert fetch.asked == []


def test_one_that_cannot_be_fetched_is_tried_once_and_said(
    engine: EngineThread, folder: Path
) -> None:
    failure = Reason("draft.fetch_failed", {"draft": SMALL, "detail": "no network"})
    fetch = Fetching(folder, failure)

    async def run() -> None:
        pool = make_pool(engine, look(folder), Settings(draft_download="auto"), default=BIG)
        arrivals = DraftWatcher(pool, lambda: look(folder), fetch)
        (await pool.lease()).release()
        wanted = pool.speculation(BIG).missing_draft
        assert wanted is not None
        assert (wanted.size_bytes, wanted.failed) == (1234, None)
        await arrivals.check()
        await arrivals.check()
        wanted = pool.speculation(BIG).missing_draft
        assert wanted is not None
        assert (wanted.failed, len(fetch.asked)) == (failure, 1)
        await asyncio.wrap_future(engine.call(lambda: engine.detach(BIG)))

    asyncio.run(run())


def test_it_turns_on_when_the_last_request_has_ended(engine: EngineThread, folder: Path) -> None:
    async def run() -> None:
        pool = make_pool(engine, look(folder), Settings(), default=BIG)
        lease = await pool.lease()
        bring(folder)
        change = asyncio.create_task(
            DraftWatcher(pool, lambda: look(folder), Fetching(folder)).check()
        )
        second = await pool.lease()
        assert second.served.draft is None
        assert pool.speculation(BIG).missing_draft is not None
        lease.release()
        second.release()
        await change
        (third := await pool.lease()).release()
        assert third.served.draft == SMALL
        await asyncio.wrap_future(engine.call(lambda: engine.detach(BIG)))

    asyncio.run(run())


@pytest.mark.parametrize(("no_draft", "read"), [(True, {BIG}), (False, {BIG, SMALL})])
def test_with_no_draft_its_weights_are_not_opened(
    engine: EngineThread, folder: Path, no_draft: bool, read: set[str]
) -> None:
    bring(folder)
    opened: set[str] = set()

    async def run() -> None:
        settings = Settings(no_draft=no_draft, draft_model=SMALL)
        pool = make_pool(
            engine,
            look(folder),
            settings,
            default=BIG,
            report=lambda entry, _: opened.add(entry.id),
        )
        (lease := await pool.lease(strategy=DRAFT)).release()
        assert (lease.served.draft is None) is no_draft
        if no_draft:
            with pytest.raises(BadRequest, match="--no-draft"):
                await pool.lease(draft=SMALL)
        await asyncio.wrap_future(engine.call(lambda: engine.detach(BIG)))

    asyncio.run(run())
    assert opened == read


def spoil(folder: Path, how: str) -> None:
    """Make the draft, or what declares it, such that it cannot draft."""
    if how == "weights":
        (folder / SMALL / "model.safetensors").write_bytes(b"0123456789")
    elif how == "tokenizer":
        (folder / SMALL / "tokenizer.json").write_text("{")
    elif how == "mute":
        for each in (BIG, SMALL):
            know_no_unknown_word(folder / each / "tokenizer.json")
    elif how == "passes":
        split_unevenly(folder / SMALL)
    elif how == "rewind":
        save_family(zoo.FAMILIES["deepseek_v41"], folder / SMALL)
    elif how == "copy":
        shutil.copytree(folder / BIG, folder / SMALL, dirs_exist_ok=True)
    elif how == "stranger":
        swap_two_tokens(folder / SMALL / "tokenizer.json")
    elif how == "head":
        config = json.loads((folder / SMALL / "config.json").read_text())
        (folder / SMALL / "config.json").write_text(
            json.dumps({**config, "architectures": ["Qwen3_5MTP"]})
        )
    elif how == "config":
        config = json.loads((folder / SMALL / "config.json").read_text())
        config["rope_scaling"] = {"type": "linear", "factor": 0}
        (folder / SMALL / "config.json").write_text(json.dumps(config))
    elif how == "package":
        (folder / BIG / FILE).write_text('{"generation": {"speculative_decoding": {"default": 1}}}')
    else:
        declare(folder, {"itself": BIG, "gguf": "unsloth/small-GGUF:Q4_K_M"}[how])


@pytest.fixture
def spoilt(folder: Path, how: str) -> Path:
    """The folder of models, with a draft that is spoilt as the case says."""
    bring(folder)
    spoil(folder, how)
    return folder


@pytest.mark.parametrize("how", ["weights", "tokenizer"])
def test_one_that_could_not_be_read_is_tried_again_once_its_files_are_others(
    engine: EngineThread, spoilt: Path
) -> None:

    async def run() -> None:
        pool = make_pool(engine, look(spoilt), Settings(), default=BIG)
        arrivals = DraftWatcher(pool, lambda: look(spoilt), Fetching(spoilt))
        (await pool.lease()).release()
        await arrivals.check()
        first = pool.residents.find(BIG)
        await arrivals.check()
        assert pool.residents.find(BIG) is first
        assert _state(pool) == "spec.off.draft_failed"
        bring(spoilt)
        await arrivals.check()
        assert _state(pool) == SMALL
        await asyncio.wrap_future(engine.call(lambda: engine.detach(BIG)))

    asyncio.run(run())


SPOILT = {
    "weights": "spec.off.draft_failed",
    "config": "spec.off.draft_failed",
    "tokenizer": "spec.off.draft_failed",
    "mute": "spec.off.draft_failed",
    "passes": "spec.off.draft_failed",
    "rewind": "spec.off.cache",
    "stranger": "draft.unfit.vocabulary",
    "head": "draft.unfit.head_only",
    "itself": "draft.unfit.same_model",
    "copy": "draft.unfit.not_smaller",
    "package": "package.missing",
    "gguf": "draft.unfit.gguf",
}
"""And what is said of it."""


@pytest.mark.filterwarnings(OLD_NAME)
@pytest.mark.parametrize("how", SPOILT)
def test_a_draft_never_stops_a_start(engine: EngineThread, spoilt: Path, how: str) -> None:
    assert drafts(engine, spoilt, Fetching(spoilt), draft_download="auto") == [SPOILT[how]] * 3


@pytest.mark.filterwarnings(OLD_NAME)
@pytest.mark.parametrize("how", ["passes", "rewind", "mute", "copy"])
def test_one_that_cannot_be_used_is_not_kept_and_whoever_names_it_hears_why(
    engine: EngineThread, spoilt: Path, how: str
) -> None:

    async def run() -> None:
        pool = make_pool(engine, look(spoilt), Settings(), default=BIG)
        for _ in range(2):  # the second time, a request has named it meanwhile
            (lease := await pool.lease()).release()
            assert lease.served.no_draft is not None
            assert (lease.served.draft, lease.served.no_draft.code) == (None, SPOILT[how])
            assert (
                pool.status(BIG).draft,
                pool.residents.weights_of(look(spoilt).find(SMALL), "auto"),
            ) == (None, None)
            with pytest.raises((BadRequest, ModelError)) as caught:
                await pool.lease(draft=SMALL)
            code = "model.tokenizer" if how == "mute" else SPOILT[how]
            assert (caught.value.code, caught.value.param) == (code, "draft_model")
        await asyncio.wrap_future(engine.call(lambda: engine.detach(BIG)))

    asyncio.run(run())


@pytest.mark.parametrize("how", ["passes", "weights", "stranger"])
def test_what_a_request_has_heard_of_a_draft_the_next_one_hears_at_once_until_its_folder_changes(
    engine: EngineThread, folder: Path, how: str
) -> None:
    (folder / BIG / FILE).unlink()
    bring(folder)
    spoil(folder, how)
    opened: list[str] = []

    def read(entry: ModelEntry, *args: Any, **more: Any) -> WeightReading:
        opened.append(entry.id)
        return load_steps(entry, *args, **more)

    async def refused(pool: Pool) -> tuple[str, object]:
        with pytest.raises((BadRequest, ModelError)) as caught:
            await asyncio.wait_for(pool.lease(draft=SMALL), 60)
        return caught.value.code, caught.value.params

    async def run() -> None:
        pool = make_pool(engine, look(folder), Settings(), default=BIG, read=read)
        (await pool.lease()).release()
        first = await refused(pool)
        opened.clear()
        lease = await pool.lease()
        assert (
            await refused(pool) == first
        )  # though a request runs, for which a new try would have to wait
        lease.release()
        (await pool.lease(strategy=AUTO)).release()
        assert opened == []
        bring(folder)
        (lease := await pool.lease(draft=SMALL)).release()
        assert (lease.served.draft, opened) == (SMALL, [SMALL])
        await asyncio.wrap_future(engine.call(lambda: engine.detach(BIG)))

    asyncio.run(run())


def test_what_a_request_has_heard_is_not_held_against_a_draft_that_discovery_sees_otherwise(
    engine: EngineThread, folder: Path
) -> None:
    (folder / BIG / FILE).unlink()
    interrupt(folder)

    async def run() -> None:
        pool = make_pool(engine, look(folder), Settings(), default=BIG)
        (folder / SMALL / "model.safetensors.part").rename(folder / SMALL / "model.safetensors")
        with pytest.raises(BadRequest, match="incomplete"):
            await pool.lease(draft=SMALL)
        await pool.update_registry(look(folder))
        (lease := await pool.lease(draft=SMALL)).release()
        assert lease.served.draft == SMALL
        await asyncio.wrap_future(engine.call(lambda: engine.detach(BIG)))

    asyncio.run(run())


def test_a_request_may_use_the_draft_that_the_strategy_leaves_out(
    engine: EngineThread, folder: Path
) -> None:
    bring(folder)

    async def run() -> list[str | None]:
        pool = make_pool(engine, look(folder), Settings(speculation="ngram"), default=BIG)
        seen = []
        for strategy in (None, AUTO, DRAFT, None):
            (lease := await pool.lease(strategy=strategy)).release()
            seen.append(lease.served.draft)
        with pytest.raises(BadRequest):
            await pool.lease(draft="../small")
        await asyncio.wrap_future(engine.call(lambda: engine.detach(BIG)))
        return seen

    assert asyncio.run(run()) == [None, None, SMALL, SMALL]
