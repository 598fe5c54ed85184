"""Weights for the tiny configurations: random, reproducible, and scaled so that outputs are not
near-ties.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import math
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import ConcatenateKVCache, QuantizedKVCache, make_prompt_cache

from omlx.models.library.borrow import Borrowed, module_of
from tests.zoo.borrowed import CONFIGS
from tests.zoo.family import SMALL, Family

_VOCABULARIES = frozenset({"vocab_size", "num_vocab", "vocab_size_per_layer_input"})
_REFUSED = frozenset({"layer_types", "layers_block_type"})
"""Keys that classes of transformers refuse where they derive them, or at another length."""

LOGIT_STD = 6.0
GAIN = 1.6
"""Gain of a block, large enough for every token of the context to matter."""


def build_family(family: Family, seed: int = 0, vocab_extra: int = 0) -> nn.Module:
    """Return a float32 model of `family`, evaluated. `vocab_extra` widens embedding and head."""
    mx.random.seed(seed)
    model = _instantiate(family, vocab_extra)
    randomise(model, seed + family.seed, family.embed_std)
    if "quantized_kv" in family.tags:
        model.make_cache = lambda: [QuantizedKVCache(group_size=32, bits=8) for _ in model.layers]
    if "concatenate" in family.tags:
        model.make_cache = lambda: [ConcatenateKVCache() for _ in model.layers]
    if not vocab_extra:
        _calibrate(model)
    model.eval()
    mx.eval(model.parameters())
    return model


def save_family(family: Family, folder: Path) -> None:
    """Replace the model in `folder` by a tiny random one of `family` with the same tokenizer."""
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    extra = vocab_size - SMALL["vocab_size"]
    model = build_family(family, vocab_extra=extra)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (folder / "config.json").write_text(json.dumps(_saved_config(family, extra)))


def make_cache(model: nn.Module) -> list[Any]:
    """Return empty layer caches of a model, as mlx-lm makes them."""
    return make_prompt_cache(model)


def noisy_copy(model: nn.Module, scale: float, seed: int = 0) -> nn.Module:
    """Return a copy with every matrix perturbed by `scale` times its spread: a draft model with a
    high acceptance rate.
    """
    noisy = copy.deepcopy(model)
    noisy.update(tree_unflatten(noisy_weights(tree_flatten(model.parameters()), scale, seed)))
    mx.eval(noisy.parameters())
    return noisy


def noisy_weights(
    weights: list[tuple[str, mx.array]], scale: float, seed: int = 0
) -> list[tuple[str, mx.array]]:
    """Return weights with every matrix perturbed by `scale` times its spread."""
    keys = mx.random.split(mx.random.key(seed), len(weights))

    def perturb(weight: mx.array, key: mx.array) -> mx.array:
        if not _is_matrix(weight):
            return weight
        return weight + scale * mx.std(weight) * mx.random.normal(weight.shape, key=key)

    return [(path, perturb(weight, key)) for (path, weight), key in zip(weights, keys, strict=True)]


def widened(family: Family, model: nn.Module, extra: int, seed: int = 0) -> nn.Module:
    """Return `model` with `extra` more ids: the same logits for the real ones, larger logits for
    the extra ones.
    """
    wide = build_family(family, vocab_extra=extra)
    real = dict(tree_flatten(model.parameters()))
    rows = mx.random.randint(0, SMALL["vocab_size"], (extra,), key=mx.random.key(seed))

    def widen(path: str, like: mx.array) -> mx.array:
        weight = real[path]
        return (
            weight if weight.shape == like.shape else mx.concatenate([weight, 10.0 * weight[rows]])
        )

    wide.update(
        tree_unflatten(
            [(path, widen(path, like)) for path, like in tree_flatten(wide.parameters())]
        )
    )
    mx.eval(wide.parameters())
    return wide


def build_config(config: dict[str, Any], seed: int = 0) -> nn.Module:
    """Return a model of a whole configuration with random weights; its output is not scaled."""
    mx.random.seed(seed)
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(copy.deepcopy(config)))
    randomise(model, seed, embed_std=1.0)
    model.eval()
    mx.eval(model.parameters())
    return model


def build_borrowed(name: str, seed: int = 0) -> nn.Module:
    """Return a float32 text model of mlx-vlm, behind the wrapper that the engine calls."""
    mx.random.seed(seed)
    model = Borrowed(whole_borrowed(CONFIGS[name]).language_model)
    model.set_dtype(mx.float32)
    randomise(model, seed, embed_std=1.0)
    _calibrate(model)
    model.eval()
    mx.eval(model.parameters())
    return model


def whole_borrowed(config: dict[str, Any]) -> Any:
    """Return mlx-vlm's whole model of a configuration, with random weights."""
    from mlx_vlm.utils import update_module_configs  # noqa: PLC0415 — needs the extra

    package, config = module_of(config), copy.deepcopy(config)
    parts = ("text_config", "vision_config", "audio_config")
    config |= {part: {} for part in parts if part not in config}
    arguments = update_module_configs(
        package.ModelConfig.from_dict(config), package, config, ["text", "vision", "audio"]
    )
    return package.Model(arguments)


def save_borrowed(name: str, folder: Path) -> None:
    """Replace the model in `folder` by a tiny random one of mlx-vlm with the same tokenizer."""
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    config = copy.deepcopy(CONFIGS[name])
    for part in (config, config.get("text_config", {})):
        if "vocab_size" in part:
            part["vocab_size"] = vocab_size
        if "eos_token_id" in part:  # a word of the tokenizer else
            part["eos_token_id"] = [vocab_size - 1]
    mx.random.seed(0)
    whole = whole_borrowed(config)
    weights = dict(tree_flatten(whole.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps(config))


def _instantiate(family: Family, vocab_extra: int) -> nn.Module:
    module = importlib.import_module(f"mlx_lm.models.{family.module or family.name}")
    return module.Model(module.ModelArgs.from_dict(config_of(family, vocab_extra)))


def config_of(family: Family, vocab_extra: int = 0) -> dict[str, Any]:
    """Return the configuration of a family, its vocabulary widened in every part."""
    name = family.module or family.name
    config: dict[str, Any] = {"model_type": name, **SMALL, **copy.deepcopy(dict(family.config))}
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        for key in _VOCABULARIES & part.keys():
            part[key] += vocab_extra
    return config


def _saved_config(family: Family, vocab_extra: int) -> dict[str, Any]:
    """Return the keys that the architecture reads: transformers refuses some of the others."""
    config = config_of(family, vocab_extra)
    name = family.module or family.name
    arguments = importlib.import_module(f"mlx_lm.models.{name}").ModelArgs
    known = inspect.signature(arguments).parameters.keys() | {"max_position_embeddings"}
    if name == "exaone4":  # its pattern of layers is a text, which transformers cannot read
        known |= {"layer_types"}
    saved = {key: value for key, value in config.items() if key in known}
    for part in (saved, *(value for value in saved.values() if isinstance(value, dict))):
        for key in _REFUSED & part.keys():
            if len(part[key]) != part.get("num_hidden_layers") or key == "layers_block_type":
                del part[key]
    return saved | {"model_type": name, "vocab_size": config["vocab_size"]}


def randomise(model: nn.Module, seed: int, embed_std: float) -> None:
    """Draw normal matrices with a gain per input, embeddings of spread `embed_std`, vectors near
    their default.
    """
    flat = tree_flatten(model.parameters())
    keys = mx.random.split(mx.random.key(seed), len(flat))

    def draw(path: str, weight: mx.array, key: mx.array) -> mx.array:
        if not mx.issubdtype(weight.dtype, mx.floating):
            return weight
        noise = mx.random.normal(weight.shape, key=key)
        if not _is_matrix(weight):
            return weight.astype(mx.float32) + 0.1 * noise
        if "embed" in path or "wte" in path:
            return noise * embed_std
        inputs = weight.shape[-1] * (weight.shape[-2] if "conv" in path and weight.ndim == 3 else 1)
        return noise * GAIN / math.sqrt(inputs)

    model.update(
        tree_unflatten(
            [(path, draw(path, w, key)) for (path, w), key in zip(flat, keys, strict=True)]
        )
    )


def _is_matrix(weight: mx.array) -> bool:
    return weight.ndim >= 2 and mx.issubdtype(weight.dtype, mx.floating)


def _calibrate(model: nn.Module) -> None:
    """Scale the output so that logits spread by LOGIT_STD. With a tied head the final norm is
    scaled and its signs are drawn, else the newest token, whose embedding the state still holds,
    would always win.
    """
    flat = dict(tree_flatten(model.parameters()))
    heads = [path for path in flat if path.endswith(("lm_head", "lm_head.weight"))]
    norms = [
        path
        for path in flat
        if path.endswith("weight") and flat[path].ndim == 1 and ".layers." not in path
    ]
    path = heads[0] if heads else norms[-1]
    if not heads:
        signs = mx.random.bernoulli(0.5, flat[path].shape, key=mx.random.key(1))
        flat[path] = mx.where(signs, 3.0, -3.0)
    probe = mx.random.randint(0, SMALL["vocab_size"], (1, 24), key=mx.random.key(2))
    for _ in range(1 if heads else 2):
        model.update(tree_unflatten([(path, flat[path])]))
        logits = model(probe, cache=make_cache(model)).astype(mx.float32)
        flat[path] = flat[path] * (LOGIT_STD / mx.std(logits, axis=-1).mean())
    model.update(tree_unflatten([(path, flat[path])]))
