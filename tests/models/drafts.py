"""A target whose package declares a draft: absent, added, incomplete, broken."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

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
from tests.models.pools import make_pool
from tests.zoo.build import save_family

BIG, SMALL = "org/big", "org/small"
ROPE_WARNING = "ignore:.rope_scaling. is deprecated:FutureWarning"
"""A warning of transformers about the config of one architecture."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The demo target, whose package declares a draft that is missing."""
    shutil.copytree(BUNDLED / "omlx-demo/target", tmp_path / BIG)
    declare(tmp_path, SMALL)
    return tmp_path


def declare(folder: Path, draft: str) -> None:
    strategy = {"type": "draft-model", "draft_model": draft, "size_bytes": 1234}
    block = {"default": "one", "strategies": {"one": strategy}}
    (folder / BIG / FILE).write_text(json.dumps({"generation": {"speculative_decoding": block}}))


def add_draft(folder: Path) -> None:
    shutil.copytree(BUNDLED / "omlx-demo/draft", folder / SMALL, dirs_exist_ok=True)


def add_partial_draft(folder: Path) -> None:
    """Leave the files of an interrupted download."""
    add_draft(folder)
    weights = folder / SMALL / "model.safetensors"
    weights.rename(f"{weights}.part")


def swap_two_tokens(tokenizer: Path) -> None:
    content = json.loads(tokenizer.read_text())
    vocabulary = content["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    tokenizer.write_text(json.dumps(content))


def remove_unknown_token(tokenizer: Path) -> None:
    """Make it a tokenizer that raises for any word outside its vocabulary."""
    content = json.loads(tokenizer.read_text())
    content["model"] = {
        "type": "WordLevel",
        "vocab": content["model"]["vocab"],
        "unk_token": "<none>",
    }
    tokenizer.write_text(json.dumps(content))


def break_attention_heads(draft: Path) -> None:
    """Make it a model that loads and whose passes raise: 6 heads over 4."""
    weights: dict[str, mx.array] = mx.load(str(draft / "model.safetensors"))
    halves = ("k_proj.weight", "v_proj.weight")
    cut = {
        name: array[: 4 * 32] if name.endswith(halves) else array for name, array in weights.items()
    }
    mx.save_safetensors(str(draft / "model.safetensors"), cut)
    config = json.loads((draft / "config.json").read_text())
    heads = {"num_attention_heads": 6, "num_key_value_heads": 4, "head_dim": 32}
    (draft / "config.json").write_text(json.dumps({**config, **heads}))


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
        await asyncio.wrap_future(engine.call(lambda: engine.detach(BIG)))
        return seen

    return asyncio.run(run())


def draft_state(pool: Pool) -> object:
    return pool.last_used.draft or (
        pool.last_used.no_draft_reason.code if pool.last_used.no_draft_reason else None
    )


def break_draft(folder: Path, how: str) -> None:
    """Break the draft, or the package that declares it."""
    if how == "weights":
        (folder / SMALL / "model.safetensors").write_bytes(b"0123456789")
    elif how == "tokenizer":
        (folder / SMALL / "tokenizer.json").write_text("{")
    elif how == "unknown-token":
        for each in (BIG, SMALL):
            remove_unknown_token(folder / each / "tokenizer.json")
    elif how == "passes":
        break_attention_heads(folder / SMALL)
    elif how == "rewind":
        save_family(zoo.FAMILIES["deepseek_v41"], folder / SMALL)
    elif how == "copy":
        shutil.copytree(folder / BIG, folder / SMALL, dirs_exist_ok=True)
    elif how == "vocabulary":
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
def broken(folder: Path, how: str) -> Path:
    """The folder of models, with a draft broken in the way `how`."""
    add_draft(folder)
    break_draft(folder, how)
    return folder
