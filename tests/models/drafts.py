"""A target whose package declares a draft: absent, added, incomplete, broken."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from omlx.engine.thread import EngineThread
from omlx.errors import Reason
from omlx.models.catalog.discovery import BUNDLED, Folder, scan_places
from omlx.models.catalog.package import FILE
from omlx.models.catalog.reference import Reference
from omlx.models.catalog.registry import Registry
from omlx.models.pool.pool import Pool
from omlx.models.watchers import DraftWatcher
from omlx.settings.schema import Settings
from tests import zoo
from tests.models.breakage import (
    TOKENIZER,
    WEIGHTS,
    Breakage,
    config,
    content,
    swap_two_tokens,
    together,
    vocabulary,
    weights,
)
from tests.models.pools import make_pool
from tests.zoo.build import save_family

BIG, SMALL = "org/big", "org/small"
ROPE_WARNING = "ignore:.rope_scaling. is deprecated:FutureWarning"
"""A warning of transformers about the config of one architecture."""


@pytest.fixture
def folder(engine: EngineThread, tmp_path: Path) -> Iterator[Path]:
    """The demo target, whose package declares a draft that is missing; to be loaded by the test."""
    shutil.copytree(BUNDLED / "omlx-demo/target", tmp_path / BIG)
    declare(tmp_path, SMALL)
    yield tmp_path
    engine.call(lambda: engine.detach(BIG)).result()


def declare(folder: Path, draft: str) -> None:
    strategy = {"type": "draft-model", "draft_model": draft, "size_bytes": 1234}
    block = {"default": "one", "strategies": {"one": strategy}}
    (folder / BIG / FILE).write_text(json.dumps({"generation": {"speculative_decoding": block}}))


def add_draft(folder: Path) -> None:
    shutil.copytree(BUNDLED / "omlx-demo/draft", folder / SMALL, dirs_exist_ok=True)


def add_partial_draft(folder: Path) -> None:
    """Leave the files of an interrupted download."""
    add_draft(folder)
    whole = folder / SMALL / WEIGHTS
    whole.rename(f"{whole}.part")


def scan(folder: Path) -> Registry:
    return scan_places([Folder("here", folder)])


class FakeFetch:
    """Adds the draft, or fails; records the references that it was called with."""

    def __init__(self, folder: Path, failure: Reason | None = None) -> None:
        self.references: list[Reference] = []
        self._folder = folder
        self._failure = failure

    async def __call__(self, reference: Reference) -> Reason | None:
        self.references.append(reference)
        if self._failure is None:
            add_draft(self._folder)
        return self._failure


def draft_states(
    engine: EngineThread, folder: Path, fetch: FakeFetch, arrives: bool = False, **settings: object
) -> list[object]:
    """Return the draft of the model, or why it has none: once loaded, then after each of two
    checks.

    `arrives`: the draft is added before each check.
    """

    async def run() -> list[object]:
        pool = make_pool(engine, scan(folder), Settings(**settings), default=BIG)
        watcher = DraftWatcher(pool, lambda: scan(folder), fetch)
        (await pool.lease()).release()
        seen = [draft_state(pool)]
        for _ in range(2):
            if arrives:
                add_draft(folder)
            await watcher.check()
            seen.append(draft_state(pool))
        return seen

    return asyncio.run(run())


def draft_state(pool: Pool) -> object:
    served = pool.last_used
    return served.draft or (served.no_draft_reason.code if served.no_draft_reason else None)


def remove_unknown_token(content: dict[str, Any]) -> None:
    """Make it a tokenizer that raises for any word outside its vocabulary."""
    vocabulary = content["model"]["vocab"]
    content["model"] = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<none>"}


def halve_keys_and_values(tensors: dict[str, mx.array]) -> None:
    for name, array in tensors.items():
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            tensors[name] = array[: 4 * 32]


SIX_HEADS = config(num_attention_heads=6, num_key_value_heads=4, head_dim=32)
"""Over 4: with halved keys and values, a model that loads and whose passes raise."""
DEFAULT_1 = '{"generation": {"speculative_decoding": {"default": 1}}}'
BREAKS: dict[str, Breakage] = {
    "weights": content(WEIGHTS, b"0123456789"),
    "tokenizer": content(TOKENIZER, "{"),
    "unknown-token": vocabulary(remove_unknown_token),
    "passes": together(weights(halve_keys_and_values), SIX_HEADS),
    "rewind": lambda draft: save_family(zoo.FAMILIES["deepseek_v41"], draft),
    "copy": lambda draft: shutil.copytree(draft.parents[1] / BIG, draft, dirs_exist_ok=True),
    "vocabulary": vocabulary(swap_two_tokens),
    "head": config(architectures=["Qwen3_5MTP"]),
    "config": config(rope_scaling={"type": "linear", "factor": 0}),
    "package": lambda draft: content(FILE, DEFAULT_1)(draft.parents[1] / BIG),
    "itself": lambda draft: declare(draft.parents[1], BIG),
    "gguf": lambda draft: declare(draft.parents[1], "unsloth/small-GGUF:Q4_K_M"),
}
"""Ways to break a draft, or the package that declares it."""


def break_draft(folder: Path, how: str) -> None:
    BREAKS[how](folder / SMALL)
    if how == "unknown-token":
        BREAKS[how](folder / BIG)


@pytest.fixture
def broken(folder: Path, how: str) -> Path:
    """The folder of models, with a draft broken in the way `how`."""
    add_draft(folder)
    break_draft(folder, how)
    return folder
