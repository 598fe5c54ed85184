"""Vision tower of mlx-vlm, computed layer by layer.

Calling the tower only builds a graph; noted outputs of layers allow evaluating it step by step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from omlx.engine.device.gpu import attention_kernels
from omlx.engine.device.model import Model, tapped, weight_bytes
from omlx.engine.step.prefill import SCORE_COPIES, VECTOR_QUERIES, has_fused_kernel
from omlx.engine.vision.reader import Features, Looking, Seeing, Vision
from omlx.engine.vision.spans import PreparedImage, TowerFacts
from omlx.models.catalog.config import text_config
from omlx.models.vision.family import VisionFamily

ACTIVATIONS = 24
"""Bytes of activations per byte of a patch's hidden state, at most."""

WEIGHTS_PER_ATTENDED = 6
"""Widths of attended patches that double the work of a layer.

A patch is multiplied with 12 width² weights, and with 2 width values of each attended patch.
"""


class BorrowedTower:
    """A `Tower` around `vlm`, mlx-vlm's model without its language model."""

    def __init__(self, family: VisionFamily, vlm: nn.Module, facts: TowerFacts) -> None:
        self.facts = facts
        self._family = family
        self._vlm = vlm

    def look(self, image: PreparedImage) -> Looking:
        dtype = _dtype(self._vlm)
        layers = _layers(self._vlm)
        arrays = {name: _array(value, dtype) for name, value in image.arrays.items()}
        with tapped(layers, range(len(layers))) as outputs:
            features = self._family.features(self._vlm, arrays)
        steps = [output for _, output in outputs]
        del arrays, outputs
        for _ in range(self.facts.steps - 1):
            yield steps.pop(0) if steps else features.rows
        return Features(features.rows, tuple(features.marks))


def open_vision(family: VisionFamily, vlm: nn.Module, model: Model) -> Vision:
    spec, body = family.spec(model), body_of(model)
    return Vision(model, body, spec, BorrowedTower(family, vlm, _facts(family, vlm, model, spec)))


def body_of(model: Any) -> Any:
    """Return the part of a text model with embeddings and layers."""
    whole = model.language_model if "language_model" in model else model
    return whole.model


def _facts(family: VisionFamily, vlm: nn.Module, model: Model, spec: Seeing) -> TowerFacts:
    dtype = _dtype(vlm)
    hidden = int((text_config(family.config) or family.config).get("hidden_size", 4096))
    # Qwen2-VL calls its output hidden
    names = [name for name in ("embed_dim", "width", "hidden_size") if name in family.vision]
    width = int(family.vision[names[0]]) if names else 1024
    return TowerFacts(
        steps=max(1, len(_layers(vlm))),
        patch_cost=weight_bytes(cast(Model, vlm)) / max(1.0, _active_bytes(family.config, model)),
        attention=1 / (WEIGHTS_PER_ATTENDED * width),
        attended=_tile_patches(family.vision),
        patch_bytes=ACTIVATIONS * width * dtype.size,
        feature_bytes=hidden * dtype.size * (1 + spec.marks),
        pair_bytes=_pair_bytes(family.vision, width, dtype.size),
        whole=spec.open_layers != "none",
    )


def _active_bytes(config: Mapping[str, Any], model: Model) -> float:
    """Return the bytes of weights multiplied per token: active experts only in a mixture."""
    text = text_config(config) or config
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    experts = next((text[name] for name in names if isinstance(text.get(name), int)), None)
    chosen = text.get("num_experts_per_tok")
    return weight_bytes(model) * (chosen / experts if experts and chosen else 1.0)


def _pair_bytes(vision: Mapping[str, Any], width: int, itemsize: int) -> int:
    """Return bytes of attention scores per pair of patches; 0 with a fused kernel."""
    heads = int(vision.get("num_heads") or vision.get("num_attention_heads") or 16)
    dim = width // heads
    fused = has_fused_kernel(VECTOR_QUERIES + 1, 1, dim, dim, attention_kernels())
    return 0 if fused else SCORE_COPIES * heads * itemsize


def _tile_patches(vision: Mapping[str, Any]) -> int:
    """Return the maximum of mutually attending patches: those of a tile, if its size is fixed."""
    sides = [vision.get(name) for name in ("image_size", "patch_size")]
    size, patch = (side[0] if isinstance(side, list) else side for side in sides)
    return int(size // patch) ** 2 if size and patch else TowerFacts().attended


def _layers(vlm: nn.Module) -> list[nn.Module]:
    """Return the longest list of modules: the layers of the tower."""
    lists = [
        value
        for _, module in vlm.named_modules()
        for value in module.values()
        if isinstance(value, list) and value and isinstance(value[0], nn.Module)
    ]
    return max(lists, key=len, default=[])


def _dtype(vlm: nn.Module) -> mx.Dtype:
    parameters = cast(list[tuple[str, mx.array]], tree_flatten(vlm.parameters()))
    floats = (array.dtype for _, array in parameters if mx.issubdtype(array.dtype, mx.floating))
    return next(floats, mx.float32)


def _array(value: Any, dtype: mx.Dtype) -> Any:
    if isinstance(value, Iterable) and not hasattr(value, "dtype"):
        return value
    array = mx.array(value)
    return array.astype(dtype) if mx.issubdtype(array.dtype, mx.floating) else array
