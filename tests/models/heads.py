"""Heads of random weights, written as they are published."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from tests import zoo
from tests.engine.heads import random_head
from tests.zoo.build import save_family


def upstream(head: nn.Module, *, packed: bool = False) -> dict[str, mx.array]:
    """The tensors of a head by the names of the published weights: experts apart, or in one tensor
    if `packed`; norms that count from zero.
    """
    named: dict[str, mx.array] = {}
    for name, tensor in tree_flatten(head.parameters()):
        before, expert, part = f"mtp.{name}".partition(".switch_mlp.")
        if expert and packed:
            named[f"{before}.experts.{part.removesuffix('.weight')}"] = tensor
        elif expert:
            for i in range(tensor.shape[0]):
                named[f"{before}.experts.{i}.{part}"] = tensor[i]
        else:
            is_norm = tensor.ndim == 1 and "norm" in name
            named[before] = tensor - 1.0 if is_norm else tensor
    for name in [name for name in named if name.endswith(".experts.gate_proj")]:
        experts = name.removesuffix("gate_proj")
        both = [named.pop(name), named.pop(f"{experts}up_proj")]
        named[f"{experts}gate_up_proj"] = mx.concatenate(both, axis=-2)
    return named


_SHARDS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "deepseek_v4": (
        "mtp.0.",
        (
            (r"^decoder\.(attn|ffn)_hc\.(\w+)$", r"hc_\1_\2"),
            (r"^decoder\.", ""),
            (r"^hc_head\.", "hc_head_"),
            (r"e_score_correction_bias$", "bias"),
            (r"gate_proj", "w1"),
            (r"down_proj", "w2"),
            (r"up_proj", "w3"),
        ),
    ),
    "glm5_next": (
        "language_model.model.layers.4.",
        ((r"^mtp_block\.", ""), (r"^shared_head_norm", "shared_head.norm")),
    ),
    "glm_moe_dsa": (
        "model.layers.3.",
        ((r"^mtp\.", ""), (r"^shared_head_norm", "shared_head.norm")),
    ),
    "nemotron_h": ("mtp.", ((r"fc1", "up_proj"), (r"fc2", "down_proj"))),
}
"""Prefix and names, as patterns of those of the modules, of heads in shards by family."""


def in_shards(family: str, tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Name the tensors of a head of mlx-vlm as in the shards of its target."""
    prefix, names = _SHARDS[family]
    named: dict[str, mx.array] = {}
    for name, tensor in tensors.items():
        published = name
        for pattern, other in names:
            published = re.sub(pattern, other, published)
        before, expert, part = published.partition(".switch_mlp.")
        if expert:
            for i in range(tensor.shape[0]):
                named[f"{prefix}{before}.experts.{i}.{part}"] = tensor[i]
        else:
            named[prefix + published] = tensor
    return named


def same(ours: dict[str, mx.array], theirs: dict[str, mx.array], tolerance: float = 0.0) -> bool:
    """Whether tensors are equal by name; norms that count from zero are rounded once more."""
    assert ours.keys() == theirs.keys()
    close = {"rtol": 10 * tolerance, "atol": tolerance}
    return all(
        ours[name].shape == theirs[name].shape and mx.allclose(ours[name], theirs[name], **close)
        for name in ours
    )


def plain(head: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(head.parameters()))


def save_target(folder: Path, family: str) -> None:
    """Save a tiny target of a family with the sizes that its tests' head has."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"vocab_size": zoo.VOCAB_SIZE}))
    save_family(zoo.FAMILIES[family], folder)


def declare(folder: Path, **values: Any) -> None:
    """Change the config of a model directory."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def save_directory(folder: Path, target: Path, tensors: dict[str, mx.array], **values: Any) -> None:
    """Save a head as a directory of its own, for the target in another."""
    folder.mkdir(parents=True)
    text = json.loads((target / "config.json").read_text())
    text = text.get("text_config", text)
    config = {"model_type": "qwen3_5_mtp", "text_config": text, **values}
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)


__all__ = [
    "declare",
    "in_shards",
    "plain",
    "random_head",
    "save_directory",
    "save_target",
    "upstream",
]
