"""Whether a directory holds a model that can be loaded, judged by its file names and its config.json alone.

`inspect_checkpoint` returns an entry either way: one that cannot be used says why, as a code with parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from omlx.engine.types import Reason
from omlx.models.catalog.architectures import is_supported
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.models.catalog.model_config import json_object

_SHARD = re.compile(r"model-(\d{1,5})-of-(\d{1,5})\.safetensors")
_UNFINISHED = ("*.incomplete", "*.part", "*.download", "*.crdownload")
_FOREIGN = ("*.bin", "*.pt", "*.pth", "*.npz", "*.onnx", "*.safetensors")
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
    """Whether anything in the directory says that it was meant to be a model."""
    wanted = ("config.json", "adapter_config.json", "*.safetensors", "*.gguf", *_UNFINISHED)
    return any(any(directory.glob(pattern)) for pattern in wanted)


def inspect_checkpoint(model_id: str, directory: Path, source: str) -> ModelEntry:
    """The entry of one directory. Reads config.json and the shard index, nothing else; never raises."""
    entry = ModelEntry(model_id, directory, source)
    try:
        entry = replace(entry, size_bytes=_weight_bytes(directory))
        config = _read_object(directory / "config.json")
        if config is not None:
            entry = replace(
                entry, model_type=_model_type(config), quantization=_quantization(config)
            )
        reason = (
            _head_reason(config or {})
            or _files_reason(directory, config)
            or _config_reason(config or {})
        )
    except (OSError, ValueError) as error:
        reason = Reason("model.unreadable", {"detail": _said(error)})
    return entry if reason is None else replace(entry, status=Status.SKIPPED, reason=reason)


def head_kind(config: Mapping[str, Any]) -> str | None:
    """The kind of draft head that a checkpoint is (`EAGLE`, `MTP`, …), or None if it is a model of its own."""
    for key, kind in _HEAD_KEYS.items():
        if key in config:
            return kind
    architectures = config.get("architectures") or []
    names = list(architectures) if isinstance(architectures, list) else [architectures]
    names += [config.get(key) or "" for key in ("model_type", "speculators_model_type")]
    for kind, pattern in _HEADS:
        if any(pattern.search(str(name)) for name in names):
            return kind
    return None


def _head_reason(config: Mapping[str, Any]) -> Reason | None:
    """Comes before what is wrong with its files: with other ones it would be a head all the same."""
    kind = head_kind(config)
    return None if kind is None else Reason("model.head_only", {"kind": kind})


def _files_reason(directory: Path, config: Mapping[str, Any] | None) -> Reason | None:
    """What is wrong with the files, if anything."""
    weights = sorted(path.name for path in directory.glob("model*.safetensors") if path.is_file())
    unfinished = _unfinished(directory)
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
    if (directory / "adapter_config.json").is_file():
        return Reason("model.adapter_only")
    if any(directory.glob("*.gguf")):
        return Reason("model.gguf_only")
    return Reason("model.no_config")


def _without_weights(directory: Path) -> Reason:
    if any(directory.glob("*.gguf")):
        return Reason("model.gguf_only")
    foreign = sorted(
        path.name for pattern in _FOREIGN for path in directory.glob(pattern) if path.is_file()
    )
    return (
        Reason("model.foreign_weights", {"file": foreign[0]})
        if foreign
        else Reason("model.no_weights")
    )


def _config_reason(config: Mapping[str, Any]) -> Reason | None:
    """What the config says against loading it, if anything."""
    if config.get("model_file") is not None:
        return Reason("model.remote_code", {"file": str(config["model_file"])})
    model_type = _model_type(config)
    if model_type is None:
        return Reason("model.no_type")
    if not is_supported(model_type):
        return Reason("model.unsupported", {"model_type": model_type})
    return None


def _missing_shards(directory: Path, weights: list[str]) -> tuple[list[str], int]:
    """Shards that the index, the shards' own numbering or a link promises and that are not there; and how many are
    promised.

    An index left over from other weights does not count where a single complete file replaces it.
    """
    promised = _indexed(directory)
    if "model.safetensors" in weights and not promised & set(weights):
        promised, weights = {"model.safetensors"}, []
    for match in filter(None, map(_SHARD.fullmatch, weights)):
        width, total = len(match[1]), match[2]
        promised |= {f"model-{i:0{width}}-of-{total}.safetensors" for i in range(1, int(total) + 1)}
    promised |= {path.name for path in directory.glob("model*.safetensors") if path.is_symlink()}
    return sorted(name for name in promised if not (directory / name).is_file()), len(promised)


def _indexed(directory: Path) -> set[str]:
    """The files that the index of the weights names; none without one."""
    index = _read_object(directory / "model.safetensors.index.json")
    named = index.get("weight_map") if index is not None else None
    return (
        {name for name in named.values() if isinstance(name, str)}
        if isinstance(named, dict)
        else set()
    )


def _unfinished(directory: Path) -> int:
    """How many files a download left unfinished: beside the model, or in the cache folders that clients keep."""
    folders = [directory, directory / ".cache/huggingface/download"]
    if directory.parent.name == "snapshots":
        folders.append(directory.parent.parent / "blobs")
    return sum(1 for folder in folders for pattern in _UNFINISHED for _ in folder.glob(pattern))


def _read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is no file. Raises ValueError for anything else in it."""
    if not path.is_file():
        return None
    try:
        return json_object(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def _model_type(config: Mapping[str, Any]) -> str | None:
    model_type = config.get("model_type")
    return model_type if isinstance(model_type, str) else None


def _quantization(config: Mapping[str, Any]) -> str | None:
    for holder in (config, config.get("text_config")):
        if not isinstance(holder, Mapping):
            continue
        found = holder.get("quantization") or holder.get("quantization_config")
        if isinstance(found, Mapping):
            mode, bits = found.get("mode", "affine"), found.get("bits")
            if mode != "affine":
                return str(mode)
            return f"{bits}-bit" if bits else str(found.get("quant_method", "quantized"))
    return None


def _weight_bytes(directory: Path) -> int:
    """Bytes of what is loaded: of two copies in one folder, the one that the index names."""
    sizes = {
        path.name: path.stat().st_size
        for path in directory.glob("model*.safetensors")
        if path.is_file()
    }
    return sum(sizes[name] for name in _indexed(directory) & sizes.keys() or sizes)


def _said(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
