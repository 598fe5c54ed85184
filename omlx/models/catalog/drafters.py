"""Trained drafters on disk, by configs and headers: kind, needs of a target, files and tensors.

| kind    | recognised by                                      | classes                   |
|---------|----------------------------------------------------|---------------------------|
| `mtp`   | model_type `…_mtp`                                 | ours, else mlx-vlm's      |
| `eagle` | architectures, speculators_model_type: EAGLE-3     | mlx-vlm's `eagle3`        |
| `block` | dflash_config                                      | `dflash2`, `dspark`, …    |

mtp.safetensors, mtp/*.safetensors   beside the weights of a model
mtp.* in model*.safetensors          as published upstream, or a layer behind the last
a directory of its own               names without a prefix
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from omlx.errors import ModelError, Reason
from omlx.machine import extra_command
from omlx.models.catalog.config import text_config
from omlx.models.catalog.files import whole_header
from omlx.models.catalog.registry import ModelEntry
from omlx.models.library.choose import BORROWED_EXTRA

_MTP: Final = "_mtp"
_EAGLE3: Final = re.compile(r"eagle-?3", re.IGNORECASE)
_EAGLE_LAYERS: Final = ("target_layer_ids", "eagle_aux_hidden_state_layer_ids")
_DFLASH2: Final = "DFlash2DraftModel"
_SHARD_PREFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "deepseek_v4": ("mtp.",),
    "glm5_next": tuple(
        f"{before}layers.{{depth}}."
        for before in ("model.language_model.", "language_model.model.", "model.", "")
    ),
    "glm_moe_dsa": ("model.layers.{depth}.",),
    "nemotron_h": ("mtp.", "language_model.mtp."),
}
"""Prefixes of an mtp head's tensors in shards of its target, by family with heads of mlx-vlm.

`depth` counts the target's layers. Not qwen4_exp, whose head writes in front of a buffer on short
passes in mlx-vlm 0.7.10.
"""
_BACKBONES: Final = frozenset({"qwen3", "llama", "dspark"})
"""Values of `model_type` of proven block drafters."""


def drafter_kind(config: Mapping[str, Any]) -> str | None:
    """Return the kind of a trained drafter, as in strategies; None for other configs."""
    names = names_of(config)
    model_type = str(config.get("model_type"))
    if "dflash_config" in config:
        return "block" if model_type in _BACKBONES and drafter_module(config) else None
    if any(_EAGLE3.search(name) for name in names):
        return "eagle"
    return "mtp" if model_type.endswith(_MTP) else None


def drafter_module(config: Mapping[str, Any]) -> str | None:
    """Return the name of mlx-vlm's module with the classes of a drafter; None without one."""
    block = config.get("dflash_config")
    if isinstance(block, Mapping):
        if _DFLASH2 in names_of(config):
            return "dflash2"
        rank = config.get("markov_rank") or block.get("markov_rank")
        return "dspark" if rank or block.get("projector_type") == "dspark" else "qwen3_dflash"
    if any(_EAGLE3.search(name) for name in names_of(config)):
        return "eagle3"
    model_type = str(config.get("model_type"))
    family = model_type.removesuffix(_MTP)
    return model_type if family != model_type and family in _SHARD_PREFIXES else None


def shard_head(config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """Return config and name prefixes of an mtp head of mlx-vlm in its target's shards.

    `config` is the target's; None for families without such heads.
    """
    family = str(config.get("model_type"))
    prefixes = _SHARD_PREFIXES.get(family)
    if prefixes is None:
        return None
    shared = {key: config[key] for key in ("quantization", "quantization_config") if key in config}
    text = text_config(config) or config
    head = {"model_type": f"{family}{_MTP}", "text_config": text, **shared}
    depth = text.get("num_hidden_layers")
    return head, tuple(prefix.format(depth=depth) for prefix in prefixes)


def needs_of(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the values of config keys that a drafter needs of its target, where stated."""
    kind, block = drafter_kind(config), config.get("dflash_config")
    needs = {name: _field(config, name) for name in ("hidden_size", "vocab_size")}
    if kind == "eagle":
        layer = config.get("transformer_layer_config")
        own = layer if isinstance(layer, Mapping) else config
        hidden = config.get("target_hidden_size") or own.get("hidden_size")
        needs = {"hidden_size": hidden, "vocab_size": own.get("vocab_size")}
    elif kind == "block" and isinstance(block, Mapping):
        depth = block.get("num_target_layers") or config.get("num_target_layers")
        needs["num_hidden_layers"] = depth
    return {name: size for name, size in needs.items() if type(size) is int}


def inner_layers(config: Mapping[str, Any], depth: int | None = None) -> tuple[int, ...]:
    """Return the ids of the target's layers whose outputs a drafter reads.

    Published ids of EAGLE-3 count the embedding's output as 0. Without them, those of the authors'
    training for a target of `depth` layers; empty without `depth`.
    """
    kind, block = drafter_kind(config), config.get("dflash_config")
    if kind == "block" and isinstance(block, Mapping):
        return _ids(block.get("target_layer_ids"), config.get("target_layer_ids"))
    named = config.get("eagle_config")
    places = (config, named) if isinstance(named, Mapping) else (config,)
    stated = _ids(*(place.get(key) for place in places for key in _EAGLE_LAYERS))
    if not stated and depth is not None:
        stated = (2, depth // 2, depth - 3)
    return tuple(max(0, number - 1) for number in stated) if kind == "eagle" else ()


def drafter_mismatch(target: ModelEntry, drafter: ModelEntry) -> Reason | None:
    """Return why a trained drafter does not fit the target, by configs; None if it does."""
    try:
        ours, theirs = (entry.files.config for entry in (target, drafter))
    except ModelError as error:
        return Reason("draft.unfit.unusable", {"draft": drafter.id, "why": error.message})
    families = {"model_type": family_of(theirs)} if drafter_kind(theirs) == "mtp" else {}
    for field, wanted in {**families, **needs_of(theirs)}.items():
        found = family_of(ours) if field in families else _field(ours, field)
        if wanted != found:
            values = {"field": field, "wanted": str(wanted), "found": str(found)}
            return Reason("draft.unfit.head", {"draft": drafter.id, **values})
    deepest = max(inner_layers(theirs), default=0) + 1
    layers = int(_field(ours, "num_hidden_layers") or 0)
    if deepest > layers > 0:
        sizes = {"deepest": deepest, "layers": layers}
        return Reason("draft.unfit.layers", {"draft": drafter.id, **sizes})
    if command := _missing_library(theirs):
        return Reason("draft.unfit.extra", {"draft": drafter.id, "command": command})
    return None


def needs_in_words(config: Mapping[str, Any]) -> Reason:
    """Return the description of a drafter's folder: kind, and sizes of its target."""
    needs, module = needs_of(config), drafter_module(config)
    label = {"eagle": "EAGLE-3", "mtp": "MTP"}.get(str(drafter_kind(config)), "DFlash")
    label = "DSpark" if module == "dspark" else label
    sizes = {"hidden": needs.get("hidden_size", 0), "vocab": needs.get("vocab_size", 0)}
    if command := _missing_library(config):
        return Reason("model.drafter_extra", {"kind": label, **sizes, "command": command})
    return Reason("model.drafter", {"kind": label, **sizes})


def family_of(config: Mapping[str, Any]) -> str:
    """Return the family of a model or mtp head: dense and sparse ones differ in tensors alone."""
    name = str(config.get("model_type")).removesuffix(_MTP)
    return name.replace("_moe", "").replace("_text", "") if name != "glm_moe_dsa" else name


def _missing_library(config: Mapping[str, Any]) -> str:
    """Return the command that adds mlx-vlm; empty if a drafter needs nothing more."""
    missing = drafter_module(config) is not None and find_spec("mlx_vlm") is None
    return extra_command(BORROWED_EXTRA) if missing else ""


def _field(config: Mapping[str, Any], name: str) -> Any:
    return config.get(name, text_config(config).get(name))


def _ids(*lists: object) -> tuple[int, ...]:
    """Return the first list of integers; empty without one."""
    for ids in lists:
        if isinstance(ids, list) and ids and all(type(number) is int for number in ids):
            return tuple(ids)
    return ()


def names_of(config: Mapping[str, Any]) -> Sequence[str]:
    """Return the names by which a config tells the classes of its model."""
    architectures = config.get("architectures") or []
    names = list(architectures) if isinstance(architectures, list) else [architectures]
    names += [config.get("model_type") or "", config.get("speculators_model_type") or ""]
    return [str(name) for name in names]


PREFIX: Final = "mtp."
"""Prefix of upstream's names; norms of such tensors are stored minus 1."""

SHORTLIST: Final = "draft_token_ids"
"""Tensor with the ids that a head drafts, if limited to a shortlist."""

_DECLARED: Final = ("mtp_num_hidden_layers", "num_nextn_predict_layers")


@dataclass(frozen=True, slots=True)
class HeadFiles:
    """Files of a trained drafter, and the names of its tensors, all starting with `prefix`.

    `config` is the directory's, or describes a head `within` the shards of a target of mlx-vlm.
    `draft_ids` is the length of the shortlist, 0 without one.
    """

    names: Mapping[Path, tuple[str, ...]]
    prefix: str
    nbytes: int
    config: Mapping[str, Any]
    draft_ids: int = 0
    within: bool = False


def own_head(entry: ModelEntry) -> HeadFiles | Reason:
    """Return the head that came with a model, or the reason for none. Raises ModelError."""
    model = entry.files
    if (head := shard_head(model.config)) is not None:
        config, prefixes = head
        found = _collect(model.weights, prefixes, config)
        if found is not None and (command := _missing_library(config)):
            return Reason("draft.unfit.extra", {"draft": "MTP", "command": command})
        if found is not None:
            return replace(found, prefix="", within=True)
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


def _collect(
    files: Sequence[Path], prefix: str | tuple[str, ...], config: Mapping[str, Any]
) -> HeadFiles | None:
    """Collect tensors whose names start with `prefix`; None without any. Raises ModelError."""
    shortlist = f"{prefix}{SHORTLIST}"
    names: dict[Path, tuple[str, ...]] = {}
    nbytes = draft_ids = 0
    for file in files:
        header = whole_header(file)
        sizes = {name: size for name, size in header.sizes.items() if name.startswith(prefix)}
        if sizes:
            names[file] = tuple(sizes)
            nbytes += sum(sizes.values())
            draft_ids += sizes.get(shortlist, 0) // 4  # int32
    return HeadFiles(names, str(prefix), nbytes, config, draft_ids) if names else None
