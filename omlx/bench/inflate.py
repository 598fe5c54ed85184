"""Makes a small trained model as expensive as a larger one, without changing what it says.

Copies of its own layers are appended whose output projections are zero, so that each adds nothing to the residual
stream but reads, computes and caches like any other. A trained pair keeps its acceptance that way, while the time of
a pass becomes what a model of that size takes.
"""

from __future__ import annotations

import copy
from typing import Any, Final, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.switch_layers import QuantizedSwitchLinear

OUTPUTS: Final = frozenset({"o_proj", "out_proj", "down_proj", "w2", "c_proj", "dense", "wo"})
"""What mlx-lm's models call the last projection of an attention, a convolution or an MLP."""


QUANTIZED: Final = (nn.QuantizedLinear, nn.QuantizedEmbedding, QuantizedSwitchLinear)
WORD: Final = 32
"""Bits of the words that they pack weights into."""


class NotInflatable(ValueError):
    """Identity layers could not be added to this model without changing it."""


def parameters(model: nn.Module) -> int:
    """How many numbers the model holds; of a quantized matrix its weights, which are packed, without their scales."""
    held = sum(array.size for _, array in flat(model))
    for module in model.modules():
        if isinstance(module, QUANTIZED):
            arrays = [
                module[name].size for name in ("weight", "scales", "biases") if name in module
            ]
            held += arrays[0] * WORD // module.bits - sum(arrays)
    return held


def flat(model: nn.Module) -> list[tuple[str, mx.array]]:
    """The model's arrays with their paths."""
    return cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))


def inflate(model: Any, at_least: int) -> int:
    """Append identity layers until `model` holds `at_least` parameters. Returns how many were added.

    Modifies the model. Layers are copied in turn from the first one on, so that the kinds stay in proportion. Raises
    NotInflatable if the logits of a probe changed by a single bit, or if a layer has no projections to silence.
    """
    before, caches = _probe(model), len(make_prompt_cache(model))
    layers: list[nn.Module] = model.layers
    trained, added = len(layers), 0
    while (held := parameters(model)) < at_least:
        layers.append(_identity(layers[added % trained]))
        added += 1
        if parameters(model) == held:
            raise NotInflatable(
                f"{type(model).__module__}: the list of layers cannot be appended to"
            )
    # Some models make as many caches as this says, and leave out the layers that have none.
    model.args.num_hidden_layers = len(layers)
    if len(make_prompt_cache(model)) != caches + added:
        raise NotInflatable(f"{type(model).__module__}: the new layers got no caches")
    if not mx.array_equal(before, _probe(model)):
        raise NotInflatable(f"{type(model).__module__}: identity layers changed the output")
    return added


def _identity(layer: nn.Module) -> nn.Module:
    """A copy of `layer`, with memory of its own, that adds nothing to what passes through it."""
    copied = copy.deepcopy(layer)
    copied.update(tree_map(lambda weight: weight + mx.zeros((), weight.dtype), copied.parameters()))
    silenced = 0
    for path, module in copied.named_modules():
        if path.rpartition(".")[2] in OUTPUTS:
            module.update(tree_map(mx.zeros_like, module.parameters()))
            silenced += 1
    if silenced < 2:
        raise NotInflatable(
            f"{type(layer).__module__}: found {silenced} output projections in a layer, expected 2"
        )
    mx.eval(copied.parameters())
    return copied


def _probe(model: Any) -> mx.array:
    """Logits of a few ids, [1, 8, V]."""
    logits: mx.array = model(mx.arange(8, dtype=mx.uint32)[None], cache=make_prompt_cache(model))
    mx.eval(logits)
    return logits
