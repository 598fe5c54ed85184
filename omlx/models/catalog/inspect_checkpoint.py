"""Inspection of a model directory: loadable, or skipped with a reason.

Reads file names, config.json and the shard index alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from omlx.catalog import escaped
from omlx.errors import ModelError, Reason
from omlx.models.catalog.config import text_config
from omlx.models.catalog.drafters import drafter_kind, names_of, needs_in_words
from omlx.models.catalog.files import (
    ADAPTER_CONFIG,
    CONFIG,
    MAX_INDEX_BYTES,
    ModelFiles,
    download_folders,
    read_object,
)
from omlx.models.catalog.registry import ModelEntry, Status
from omlx.models.library.choose import Classes, choose

_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-(\d{1,5})-of-(\d{1,5})\.safetensors")
_UNFINISHED = ("*.incomplete", "*.part", "*.download", "*.crdownload")
_FOREIGN = ("*.bin", "*.pt", "*.pth", "*.npz", "*.onnx", "*.safetensors")
_MODEL_FILES = frozenset({"config.json", ADAPTER_CONFIG})
_MODEL_SUFFIXES = (".safetensors", ".gguf", *(pattern[1:] for pattern in _UNFINISHED))
_HEADS = (
    ("EAGLE", re.compile(r"eagle", re.IGNORECASE)),
    ("DFlash", re.compile(r"dflash", re.IGNORECASE)),
    ("Medusa", re.compile(r"medusa", re.IGNORECASE)),
    ("MTP", re.compile(r"mtp|nextn|assistant", re.IGNORECASE)),
)
_HEAD_KEYS = {
    "eagle_config": "EAGLE",
    "dflash_config": "DFlash",
    "medusa_num_heads": "Medusa",
    "medusa_num_layers": "Medusa",
}


def looks_like_model(directory: Path) -> bool:
    """Return whether a directory has any model file, complete or not."""
    try:
        names = os.listdir(directory)
    except OSError:
        return False
    return any(name in _MODEL_FILES or name.endswith(_MODEL_SUFFIXES) for name in names)


def has_config(directory: Path) -> bool:
    return any((directory / name).is_file() for name in _MODEL_FILES)


def inspect_checkpoint(model_id: str, directory: Path, source: str) -> ModelEntry:
    """Return the entry of one directory. Reads config.json and the shard index; never raises."""
    entry = ModelEntry(model_id, directory, source)
    classes: Classes | Reason | None = None
    try:
        entry = replace(entry, size_bytes=_weight_bytes(directory))
        files = ModelFiles.at(directory)
        config = files.config if files.has(CONFIG) else None
        if config is not None:
            model_type, quantization = kind_of(config)
            classes = choose(config)
            entry = replace(
                entry,
                model_type=model_type,
                quantization=quantization,
                library=None if isinstance(classes, Reason) else classes.library,
                drafter=drafter_kind(config),
            )
        shown = escaped(model_id)
        reason = (
            # an id that no address can hold, such as one with a line break, or a terminal obeys
            (Reason("model.name", {"name": shown}) if shown != model_id else None)
            # Before the files: a head directory is no incomplete model.
            or _head_reason(config or {})
            or _files_reason(directory, config)
            or (classes if isinstance(classes, Reason) else None)
        )
    except OSError as error:
        reason = Reason("model.unreadable", {"detail": str(error)})
    except ModelError as error:
        lines = "{file}: {detail}".format_map(error.params).splitlines()
        reason = Reason("model.unreadable", {"detail": lines[0]})
    if reason is not None:
        entry = replace(entry, status=Status.SKIPPED, reason=reason)
    return entry


def kind_of(config: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return a config's model type and quantization label."""
    model_type = config.get("model_type")
    return model_type if isinstance(model_type, str) else None, _quantization(config)


def config_reason(config: Mapping[str, Any]) -> Reason | None:
    """Return why a model with this config cannot be loaded; None if possible."""
    classes = choose(config)
    return _head_reason(config) or (classes if isinstance(classes, Reason) else None)


def _head_reason(config: Mapping[str, Any]) -> Reason | None:
    """Return the reason of a trained drafter: what it needs, or `EAGLE`, … if not supported."""
    if drafter_kind(config) is not None:
        return needs_in_words(config)
    for key, kind in _HEAD_KEYS.items():
        if key in config:
            return Reason("model.head_only", {"kind": kind})
    for kind, pattern in _HEADS:
        if any(map(pattern.search, names_of(config))):
            return Reason("model.head_only", {"kind": kind})
    return None


def _files_reason(directory: Path, config: Mapping[str, Any] | None) -> Reason | None:
    weights = sorted(path.name for path in directory.glob("model*.safetensors") if path.is_file())
    folders = [directory, *download_folders(directory)]
    unfinished = sum(len(_glob(folder, _UNFINISHED)) for folder in folders)
    missing, total = _missing_shards(directory, weights)
    if unfinished and (missing or not weights):
        return Reason("model.half_download", {"unfinished": unfinished})
    if config is None:
        return _without_config(directory)
    if missing:
        return Reason(
            "model.shards_missing", {"missing": len(missing), "total": total, "first": missing[0]}
        )
    if not weights:
        return _without_weights(directory)
    return None


def _without_config(directory: Path) -> Reason:
    if not directory.is_dir():
        return Reason("model.no_main")
    if (directory / ADAPTER_CONFIG).is_file():
        return Reason("model.adapter_only")
    if any(directory.glob("*.gguf")):
        return Reason("model.gguf_only")
    return Reason("model.no_config")


def _without_weights(directory: Path) -> Reason:
    if any(directory.glob("*.gguf")):
        return Reason("model.gguf_only")
    foreign = sorted(path.name for path in _glob(directory, _FOREIGN) if path.is_file())
    if foreign:
        return Reason("model.foreign_weights", {"file": foreign[0]})
    return Reason("model.no_weights")


def _missing_shards(directory: Path, weights: list[str]) -> tuple[list[str], int]:
    """Return the missing shards, and the number of promised shards.

    The index, numbered names and links promise shards. An index naming no file in the folder is
    ignored if a single file or numbered shards are present.
    """
    promised = _indexed(directory)
    if not promised & set(weights):
        if "model.safetensors" in weights:
            promised, weights = {"model.safetensors"}, []
        elif weights and all(map(_SHARD.fullmatch, weights)):
            promised = set()
    for match in filter(None, map(_SHARD.fullmatch, weights)):
        width, total = len(match[1]), match[2]
        for number in range(1, int(total) + 1):
            promised.add(f"model-{number:0{width}}-of-{total}.safetensors")
    promised |= {path.name for path in directory.glob("model*.safetensors") if path.is_symlink()}
    return sorted(name for name in promised if not (directory / name).is_file()), len(promised)


def _indexed(directory: Path) -> set[str]:
    """Return the weight files named by the index; empty without a readable index."""
    try:
        # An unreadable index is no error: mlx-lm loads all weights without reading it.
        index = read_object(directory / _INDEX, MAX_INDEX_BYTES)
    except (FileNotFoundError, ValueError):
        return set()
    shards = index.get("weight_map")
    if not isinstance(shards, dict):
        return set()
    return {name for name in shards.values() if isinstance(name, str)}


def _glob(folder: Path, patterns: Iterable[str]) -> list[Path]:
    return [path for pattern in patterns for path in folder.glob(pattern)]


def _quantization(config: Mapping[str, Any]) -> str | None:
    for part in (config, text_config(config)):
        settings = part.get("quantization") or part.get("quantization_config")
        if isinstance(settings, Mapping):
            mode, bits = settings.get("mode", "affine"), settings.get("bits")
            if mode != "affine":
                return str(mode)
            return f"{bits}-bit" if bits else str(settings.get("quant_method", "quantized"))
    return None


def _weight_bytes(directory: Path) -> int:
    """Return the bytes to load: files named by the index, else all weights."""
    sizes = {}
    for path in directory.glob("model*.safetensors"):
        if path.is_file():
            sizes[path.name] = path.stat().st_size
    # a folder may hold two copies of the weights
    loaded = _indexed(directory) & sizes.keys() or sizes.keys()
    return sum(sizes[name] for name in loaded)
