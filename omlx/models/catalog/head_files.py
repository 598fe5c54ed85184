"""Trained drafters on disk: their files and tensors. Reads headers and configs alone.

mtp.safetensors, mtp/*.safetensors   beside the weights of a model
mtp.* in model*.safetensors          as published upstream
a directory of its own               names without a prefix; EAGLE-3, DFlash, DSpark, too
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from omlx.errors import ModelError, Reason
from omlx.models.catalog.config import text_config
from omlx.models.catalog.files import whole_header
from omlx.models.catalog.registry import ModelEntry

PREFIX: Final = "mtp."
"""Prefix of upstream's names; norms of such tensors are stored minus 1."""

SHORTLIST: Final = "draft_token_ids"
"""Tensor with the ids that a head drafts, if limited to a shortlist."""

_DECLARED: Final = ("mtp_num_hidden_layers", "num_nextn_predict_layers")


@dataclass(frozen=True, slots=True)
class HeadFiles:
    """Files of a trained drafter, and the names of its tensors, all starting with `prefix`.

    `config` is the directory's. `draft_ids` is the length of the shortlist, 0 without one.
    """

    names: Mapping[Path, tuple[str, ...]]
    prefix: str
    nbytes: int
    config: Mapping[str, Any]
    draft_ids: int = 0


def own_head(entry: ModelEntry) -> HeadFiles | Reason:
    """Return the head that came with a model, or the reason for none. Raises ModelError."""
    model = entry.files
    beside = [*entry.path.glob("mtp.safetensors")]
    beside += sorted((entry.path / "mtp").glob("*.safetensors"))
    # Without prefixes: a directory of its own, moved beside the weights.
    for files, prefix in ((beside, PREFIX), (model.weights, PREFIX), (beside, "")):
        if files is model.weights and not model.tensors.names_any(PREFIX):
            continue
        found = _collect(files, prefix, model.config)
        if found is not None:
            return found
    if declared_layers(model.config):
        command = f"omlx pull {head_repository(entry.id)}"
        return Reason("spec.off.head_missing", {"model": entry.id, "command": command})
    return Reason("spec.off.no_head")


def head_directory(entry: ModelEntry) -> HeadFiles:
    """Return the drafter in a directory of its own. Raises ModelError."""
    files = entry.files
    found = _collect(files.weights, PREFIX, files.config)
    found = found or _collect(files.weights, "", files.config)
    if found is None:
        raise ModelError("model.no_weights")
    return found


def declared_layers(config: Mapping[str, Any]) -> int:
    """Return the number of head layers promised by a config."""
    counts = [part.get(name) for part in (config, text_config(config)) for name in _DECLARED]
    return max((count for count in counts if isinstance(count, int)), default=0)


def head_repository(model: str) -> str:
    """Return the repository in which mlx-community publishes the head of a model."""
    base, dash, form = model.rpartition("-")
    if dash and (form.endswith("bit") or form in ("bf16", "mxfp8", "mxfp4", "nvfp4")):
        return f"{base}-MTP-{form}"
    return f"{model}-MTP-4bit"


def _collect(files: Sequence[Path], prefix: str, config: Mapping[str, Any]) -> HeadFiles | None:
    """Collect tensors whose names start with `prefix`; None without any. Raises ModelError."""
    names: dict[Path, tuple[str, ...]] = {}
    nbytes = draft_ids = 0
    for file in files:
        header = whole_header(file)
        sizes = {name: size for name, size in header.sizes.items() if name.startswith(prefix)}
        if sizes:
            names[file] = tuple(sizes)
            nbytes += sum(sizes.values())
            draft_ids += sizes.get(f"{prefix}{SHORTLIST}", 0) // 4  # int32
    return HeadFiles(names, prefix, nbytes, config, draft_ids) if names else None
