"""Model folders as other programs write them; weights are a few bytes, as discovery reads none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from omlx.catalog import catalog
from omlx.models.catalog.discovery import BUNDLED, Folder, scan_places
from omlx.models.catalog.inspect_checkpoint import inspect_checkpoint
from omlx.models.catalog.registry import ModelEntry, Registry, Status

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
WEIGHTS = ("model.safetensors",)


def ids(registry: Registry) -> dict[str, str]:
    return {entry.id: entry.reason.code if entry.reason else "usable" for entry in registry.entries}


def entry(folder: Path) -> ModelEntry:
    return ModelEntry(folder.name, folder, "test")


def inspected(folder: Path) -> ModelEntry:
    return inspect_checkpoint(folder.name, folder, "test")


def only(folder: Path) -> ModelEntry:
    (entry,) = scan_places([Folder("models", folder)]).entries
    return entry


def code(entry: ModelEntry) -> str:
    assert entry.status is Status.SKIPPED
    assert entry.reason.code in catalog()
    return entry.reason.code


def model(
    folder: Path, config: dict[str, Any] | None = None, files: Iterable[str] = WEIGHTS
) -> Path:
    """Write a folder with config.json (of llama; none if empty) and `files` of ten bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    config = LLAMA if config is None else config
    if config:
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name in files:
        (folder / name).write_bytes(b"0123456789")
    return folder


def with_tokenizer(folder: Path) -> Path:
    """Make a folder that has the tokenizer of the bundled models."""
    folder.mkdir(exist_ok=True)
    for file in (BUNDLED / "omlx-demo/draft").glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder


def index(folder: Path, shards: Iterable[str]) -> None:
    content = {"weight_map": {f"layer.{i}": shard for i, shard in enumerate(shards)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content), encoding="utf-8")


def hub_model(
    cache: Path,
    model_id: str,
    files: Iterable[str] = WEIGHTS,
    unfinished: int = 0,
    main: bool = True,
) -> Path:
    """Write a repository to the Hugging Face cache; return its snapshot of links to blobs."""
    repo = cache / f"models--{model_id.replace('/', '--')}"
    revision = "0123456789abcdef0123456789abcdef01234567"
    snapshot = repo / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    if main:
        (repo / "refs").mkdir()
        (repo / "refs/main").write_text(revision, encoding="utf-8")
    for number, name in enumerate(["config.json", *files]):
        blob = repo / "blobs" / f"{number:040x}"
        blob.write_text(
            json.dumps(LLAMA) if name == "config.json" else "0123456789", encoding="utf-8"
        )
        (snapshot / name).symlink_to(f"../../blobs/{blob.name}")
    for number in range(unfinished):
        (repo / "blobs" / f"{number:064x}.incomplete").write_bytes(b"01")
    return snapshot


def shards(count: int) -> list[str]:
    return [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
