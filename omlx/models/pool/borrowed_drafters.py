"""Drafter modules of mlx-vlm as stateless calls, with the target's embedding and output layer.

Modules keep cache and position of one text, and call a sampler of their own choice. Here both are
given with each call. Noise and masks come from `TokenSampler`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.rope_utils import initialize_rope
from mlx_vlm.models.linear import linear

from omlx.engine.device.model import Cache, Model, SplitModel, Taps, cache_maker, parts_of, split
from omlx.engine.device.rewind import length_of
from omlx.engine.speculation.drafters.borrowed import (
    BlocksDrafter,
    EagleDrafter,
    PairsDrafter,
)
from omlx.engine.speculation.drafters.head import HeadDrafter, TokenSampler
from omlx.errors import ModelError, Reason
from omlx.models.catalog.drafters import drafter_kind, drafter_module, eagle_layers, needs_of
from omlx.models.library.borrow import module_of
from omlx.models.library.caches import make_cache

_RENAMED: Final = (("midlayer.", "layers.0."), ("model.", ""))
"""Name prefixes of EAGLE-3 tensors, with mlx-vlm's."""
_STREAMS: Final[dict[str, tuple[Callable[[Any, mx.array], mx.array], str]]] = {
    "deepseek_v4_mtp": (lambda module, states: module.norm(module.hc_head(states)), "hc_mult"),
}
"""Heads between hyperconnections: what mixes their streams, and the config key with the number."""
_LAYERS: Final = (nn.Linear, nn.QuantizedLinear)
_PLAIN_ROPE: Final = (None, "default")


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
    kind, name = cast(str, drafter_kind(config)), drafter_module(config)
    layers, depth = needs_of(config).layers, len(cast(Any, target.body).layers)
    if name in _STREAMS:  # behind the last layer, before the mixer
        layers = (depth - 1,)
    if kind == "eagle":
        layers = eagle_layers(config, depth)
        config = _eagle_config(config)
        tensors = {_renamed(name): tensor for name, tensor in tensors.items()}
    if max(layers, default=0) >= depth:
        raise _refused(f"it reads layer {max(layers) + 1}, of {depth}")
    try:
        package: Any = module_of({"model_type": name})
        module = package.Model(package.ModelConfig.from_dict(dict(config)))
    except (AttributeError, ImportError, KeyError, TypeError, ValueError) as error:
        raise _refused(" ".join(str(error).split())) from error
    # Random weights are drawn lazily, and the generator keeps every draw until evaluated.
    mx.eval(mx.random.state)
    if kind == "eagle":
        _complete_eagle(module, config, tensors, target)
    sanitize = getattr(module, "sanitize", dict)  # heads of some families have none
    try:
        if within:
            tensors = _split_off(config, tensors)
        return BorrowedHead(kind, module, layers), sanitize(tensors)
    except (KeyError, ValueError) as error:
        raise _refused(" ".join(str(error).split())) from error


def _split_off(config: Mapping[str, Any], tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return tensors of a target's checkpoint by the names of its mtp head."""
    from mlx_vlm.speculative.drafters.mtp_split import get_mtp_splitter  # noqa: PLC0415 — 0.1 s

    text = dict(config["text_config"])
    splitter = get_mtp_splitter(str(config["model_type"]).removesuffix("_mtp"), source_config=text)
    if splitter is None:
        raise ValueError(f"{config['model_type']}: unknown to mlx-vlm")
    renamed: dict[str, mx.array] = splitter.transform(tensors, text, False)
    return renamed


def drafter_of(
    name: str, head: BorrowedHead, target: Model, vocab_size: int
) -> HeadDrafter | Reason:
    """Return the drafter of a loaded module, or a reason. Runs short passes."""
    parts = _split(target, vocab_size)
    if isinstance(parts, Reason):
        return parts
    if head.layers:
        body: Any = parts.body
        parts = replace(parts, body=Taps(body, body.layers, head.layers))
    module = cast(Any, head.module)
    if head.kind == "block":
        return BlocksDrafter(name, cast(Any, Blocks(module, parts)), parts, vocab_size)
    if head.kind == "mtp":
        module._input_embed, module._lm_head_fn = partial(parts.embed), partial(parts.score)
        return PairsDrafter(name, cast(Any, Pairs(module)), parts, vocab_size)
    if module.embed_tokens is None:
        module.embed_tokens = partial(parts.embed)
    ids = None if module.d2t is None else mx.arange(module.d2t.size) + module.d2t
    if ids is not None and not 0 <= ids.min().item() <= ids.max().item() < vocab_size:
        return Reason("spec.off.head_weights", {"detail": f"d2t: ids beyond {vocab_size}"})
    return EagleDrafter(name, cast(Any, Pairs(module, ids)), parts, vocab_size)


def _split(target: Model, vocab_size: int) -> SplitModel | Reason:
    """Split a target; some of mlx-vlm's score short windows token by token."""
    make_cache, known = cache_maker(target), parts_of(target)
    parts = split(target, make_cache, vocab_size, known)
    if isinstance(parts, Reason) and known is not None and isinstance(known.output, _LAYERS):
        known = replace(known, score=partial(linear, known.output))
        return split(target, make_cache, vocab_size, known)
    return parts


class Pairs:
    """An mtp head or EAGLE-3; the logits of EAGLE-3 are those of `ids` [n] alone, if given."""

    def __init__(self, module: Any, ids: mx.array | None = None) -> None:
        self._module = module
        self._ids = ids
        streams = _STREAMS.get(_name_of(module))
        self._mix = None if streams is None else streams[0]
        self.streams = 1 if streams is None else int(getattr(module.args, streams[1]))
        self._first = 1 if hasattr(module, "d2t") else 0  # EAGLE-3 counts a pair by its token

    def make_cache(self) -> Cache:
        return make_cache(self._module)

    def step(self, tokens: mx.array, states: mx.array, cache: Cache) -> mx.array:
        module = self._module
        module._cache, module._next_position = cache, (length_of(cache) or 0) + self._first
        try:
            output = module._forward_tokens(tokens, states, mx.int32)
        finally:
            module._cache, module._next_position = [], 0
        return cast(mx.array, output[-1] if isinstance(output, tuple) else output)

    def logits(self, hidden: mx.array, vocab_size: int) -> mx.array:
        score = self._module._logits if self._first else self._module._lm_head_fn
        states = hidden[None] if self._mix is None else self._mix(self._module, hidden[None])
        logits: mx.array = score(states)[0]
        if self._ids is not None:
            return _spread(logits, self._ids, vocab_size)
        return logits[:, :vocab_size]


class Blocks:
    """A drafter of blocks of masks: DFlash, DFlash 2, DSpark."""

    def __init__(self, module: Any, parts: SplitModel) -> None:
        self._module = module
        self.longest = int(module.config.block_size) - 1
        if module.embed_tokens is None:
            module.embed_tokens = partial(parts.embed)
        module.lm_head = partial(parts.score)
        self._candidates: list[mx.array] = []
        if hasattr(module, "candidate_selector"):
            selector = module.candidate_selector
            selector.successor_codebook = _noting(selector.successor_codebook, self._candidates)

    def make_cache(self) -> Cache:
        return make_cache(self._module)

    def enter(self, states: mx.array, cache: Cache) -> mx.array:
        # Its logits, which depend on the context, are never evaluated but to measure the cache.
        logits: mx.array = self._module(mx.zeros((1, 1), mx.int32), states, cache)
        return logits

    def draft(
        self, newest: int, states: mx.array, cache: Cache, n: int, sampler: TokenSampler
    ) -> None:
        sample = _BlockSampler(sampler, self._candidates)
        self._module.draft_block(newest, states, cache, n + 1, sample)


class _BlockSampler:
    """The sampler of a block: logits [..., V] of consecutive positions to ids [...]."""

    def __init__(self, sampler: TokenSampler, candidates: list[mx.array]) -> None:
        self._sampler = sampler
        self._candidates = candidates

    def __call__(self, logits: mx.array) -> mx.array:
        size = self._sampler.place.sampler.vocab_size
        rows = logits.reshape(-1, logits.shape[-1])[:, :size]
        ids = [self._sampler.sample(row[None]) for row in rows]
        return mx.concatenate(ids).reshape(logits.shape[:-1]).astype(mx.int32)

    def sample_proposal(self, scores: mx.array) -> mx.array:
        """Return the sampled place [1] among the newest candidates, by scores [1, k]."""
        size, ids = self._sampler.place.sampler.vocab_size, self._candidates.pop()[0]
        token = self._sampler.sample(_spread(scores.astype(mx.float32), ids, size))
        return mx.argmax(ids == token)[None]


def _name_of(module: object) -> str:
    return type(module).__module__.rpartition(".")[2]


def _spread(scores: mx.array, ids: mx.array, size: int) -> mx.array:
    """Return logits [n, size]: `scores` [n, k] at `ids` [k], -inf elsewhere."""
    logits = mx.full((scores.shape[0], size), -mx.inf, scores.dtype)
    logits[:, ids] = scores
    return logits


def _noting(module: Any, noted: list[mx.array]) -> Callable[[mx.array], mx.array]:
    """Return `module`, whose newest argument stands in `noted`."""

    def call(ids: mx.array) -> mx.array:
        noted[:] = [ids]
        return cast(mx.array, module(ids))

    return call


def _eagle_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config in the form of speculators: the layer's values in a part of their own."""
    changed = {"model_type": "eagle3", "target_layer_ids": [0, 0, 0]}
    if isinstance(config.get("transformer_layer_config"), Mapping):
        return {**config, **changed}
    layer = {**config, "model_type": "llama"}
    named = {"draft_vocab_size": config.get("vocab_size"), "transformer_layer_config": layer}
    return {**named, **config, **changed}


def _complete_eagle(
    module: Any, config: Mapping[str, Any], tensors: dict[str, mx.array], target: SplitModel
) -> None:
    """Give EAGLE-3 the scaled rotary positions of its config, and the target's embedding."""
    layer = config["transformer_layer_config"]
    scaling = layer.get("rope_scaling") or layer.get("rope_parameters") or {}
    if scaling.get("rope_type", scaling.get("type")) not in _PLAIN_ROPE:
        text = module.config.transformer_layer_config
        most = text.max_position_embeddings
        for block in module.layers:
            options = (text.head_dim, text.rope_theta, text.rope_traditional, scaling, most)
            block.self_attn.rope = initialize_rope(*options)
    width = target.embed(mx.array([[0]])).shape[-1]
    trained = config.get("embed_requires_grad") and "embed_tokens.weight" in tensors
    if width == module.hidden_size and not trained:
        tensors.pop("embed_tokens.weight", None)
        module.embed_tokens = None


def _renamed(name: str) -> str:
    for prefix, other in _RENAMED:
        if name.startswith(prefix):
            name = other + name.removeprefix(prefix)
    return name


def _refused(detail: str) -> ModelError:
    return ModelError("spec.off.head_weights", detail=detail[:300])
