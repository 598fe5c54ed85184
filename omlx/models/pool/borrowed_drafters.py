"""Drafters of mlx-vlm: modules by their configs, tensors by the modules' names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.rope_utils import initialize_rope
from mlx_vlm.models.linear import linear

from omlx.engine.device.model import Model, SplitModel, Taps, cache_maker, parts_of, split
from omlx.engine.speculation.drafters.borrowed import DRAFTERS, Adapter
from omlx.engine.speculation.drafters.head import HeadDrafter
from omlx.errors import Reason
from omlx.models.catalog.drafters import drafter_kind, drafter_module, inner_layers
from omlx.models.library.borrow import module_of
from omlx.models.library.caches import make_cache
from omlx.models.pool.opening import head_refusal

_LAYERS: Final = (nn.Linear, nn.QuantizedLinear)


@dataclass(frozen=True, slots=True)
class BorrowedHead:
    """A loaded drafter of mlx-vlm; `layers` are the ids of tapped layers of the target."""

    kind: str
    module: nn.Module
    layers: tuple[int, ...]


def open_drafter(
    config: Mapping[str, Any],
    tensors: dict[str, mx.array],
    target: SplitModel,
    *,
    within: bool = False,
) -> tuple[BorrowedHead, dict[str, mx.array]]:
    """Return the module of a config, with random weights, and tensors by its names.

    `within`: the tensors have the names of their target's checkpoint. Raises ModelError for a
    refused config, and for experts of which some are missing.
    """
    kind = cast(str, drafter_kind(config))
    depth = len(cast(Any, target.body).layers)
    layers = inner_layers(config, depth)
    if max(layers, default=0) >= depth:
        raise head_refusal(f"it reads layer {max(layers) + 1}, of {depth}")
    if kind == "eagle":
        if not isinstance(config.get("transformer_layer_config"), Mapping):  # not of speculators
            layer = {"transformer_layer_config": dict(config)}
            config = {"draft_vocab_size": config.get("vocab_size"), **config, **layer}
        tensors = {
            key.removeprefix("model.").replace("midlayer.", "layers.0."): tensor
            for key, tensor in tensors.items()
        }
    try:
        package: Any = module_of({"model_type": drafter_module(config)})
        module = package.Model(package.ModelConfig.from_dict(dict(config)))
        # Random weights are drawn lazily, and the generator keeps every draw until evaluated.
        mx.eval(mx.random.state)
        if kind == "eagle":
            _complete_eagle(module, config, tensors, target)
        if hasattr(module, "hc_head"):  # reads the target's streams before mixing
            layers = (depth - 1,)
        sanitize = getattr(module, "sanitize", dict)  # heads of some families have none
        tensors = _split_off(config, tensors) if within else tensors
        return BorrowedHead(kind, module, layers), sanitize(tensors)
    except (AttributeError, ImportError, KeyError, TypeError, ValueError) as error:
        raise head_refusal(error) from error


def _split_off(config: Mapping[str, Any], tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return tensors of a target's checkpoint by the names of its mtp head."""
    from mlx_vlm.speculative.drafters.mtp_split import get_mtp_splitter  # noqa: PLC0415 — 0.1 s

    text = dict(config["text_config"])
    family = str(config["model_type"]).removesuffix("_mtp")
    splitter: Any = get_mtp_splitter(family, source_config=text)
    renamed: dict[str, mx.array] = splitter.transform(tensors, text, False)
    return renamed


def drafter_of(
    name: str, head: BorrowedHead, target: Model, vocab_size: int
) -> HeadDrafter | Reason:
    """Return the drafter of a loaded module, or a reason. Runs short passes."""
    known = parts_of(target)
    parts = split(target, cache_maker(target), vocab_size, known)
    if isinstance(parts, Reason) and known is not None and isinstance(known.output, _LAYERS):
        # Some language models of mlx-vlm score short windows token by token.
        known = replace(known, score=partial(linear, known.output))
        parts = split(target, cache_maker(target), vocab_size, known)
    if isinstance(parts, Reason):
        return parts
    if head.layers:
        body: Any = parts.body
        parts = replace(parts, body=Taps(body, body.layers, head.layers))
    adapter = Adapter.of(head.module, partial(make_cache, head.module), parts)
    ids = adapter.ids
    if ids is not None and not 0 <= ids.min() <= ids.max() < vocab_size:
        return Reason("spec.off.head_weights", {"detail": f"d2t: ids beyond {vocab_size}"})
    return DRAFTERS[head.kind](name, adapter, parts, vocab_size)


def _complete_eagle(
    module: Any, config: Mapping[str, Any], tensors: dict[str, mx.array], target: SplitModel
) -> None:
    """Give EAGLE-3 the scaled rotary positions of its config, and the target's embedding."""
    layer = config["transformer_layer_config"]
    scaling = layer.get("rope_scaling") or layer.get("rope_parameters") or {}
    if scaling.get("rope_type", scaling.get("type")) not in (None, "default"):
        text = module.config.transformer_layer_config
        options = text.head_dim, text.rope_theta, text.rope_traditional, scaling
        for block in module.layers:
            block.self_attn.rope = initialize_rope(*options, text.max_position_embeddings)
    width = target.embed(mx.array([[0]])).shape[-1]
    trained = config.get("embed_requires_grad") and "embed_tokens.weight" in tensors
    if width == module.hidden_size and not trained:
        tensors.pop("embed_tokens.weight", None)
        module.embed_tokens = None
