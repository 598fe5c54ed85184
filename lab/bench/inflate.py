"""Inflation: make a small trained model as expensive as a larger one with the same output.

Copies of its own layers are appended whose output projections are zero: each adds nothing to the
residual stream but reads, computes and caches like any other. A trained pair keeps its acceptance
rate, while a pass takes as long as one of a model of that size.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.models.cache import make_prompt_cache

from lab.bench.subject import parameter_count

OUTPUTS: Final = frozenset({"o_proj", "out_proj", "down_proj", "w2", "c_proj", "dense", "wo"})
"""mlx-lm's names for the last projection of an attention, a convolution or an MLP."""


class NotInflatable(ValueError):
    """Identity layers could not be added to this model without changing it."""


def parameters(text: str) -> int:
    """Parse a number of parameters: `20M`, `1.5B`, `500k` or a plain number."""
    factor = {"k": 10**3, "m": 10**6, "b": 10**9}.get(text[-1:].lower(), 1)
    try:
        value = int(float(text[:-1] if factor > 1 else text) * factor)
    except (ValueError, OverflowError):
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of parameters such as 20M")
    return value


def add_arguments(parser: argparse.ArgumentParser, *, draft: bool = True) -> None:
    """Add the flags that `growth` reads to `parser`."""
    parser.add_argument(
        "--inflate",
        type=parameters,
        default=0,
        metavar="N",
        help="add identity layers up to N parameters, such as 20M",
    )
    if draft:
        parser.add_argument(
            "--inflate-draft", action="store_true", help="grow the draft by the same factor"
        )


def growth(args: argparse.Namespace) -> Callable[[Any, Any | None], None]:
    """Return what inflates a model and its draft as the flags say."""

    def grow(model: Any, draft: Any | None) -> None:
        trained = parameter_count(model)
        inflate(model, args.inflate)
        if draft is not None and args.inflate_draft:
            inflate(draft, parameter_count(draft) * parameter_count(model) // trained)

    return grow


def inflate(model: Any, at_least: int) -> int:
    """Append identity layers until `model` holds `at_least` parameters. Returns how many.

    Modifies the model. Layers are copied in turn from the first one on, so the kinds stay in
    proportion. Raises NotInflatable if the logits of a probe changed by a single bit, or if a
    layer has no projections to silence.
    """
    before, caches = _probe(model), len(make_prompt_cache(model))
    layers: list[nn.Module] = model.layers
    trained, added = len(layers), 0
    while (held := parameter_count(model)) < at_least:
        layers.append(_identity(layers[added % trained]))
        added += 1
        if parameter_count(model) == held:
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
    """Return a copy of `layer`, with arrays of its own, that adds nothing to its input."""
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
    """Return the logits of a few ids, [1, 8, V]."""
    logits: mx.array = model(mx.arange(8, dtype=mx.uint32)[None], cache=make_prompt_cache(model))
    mx.eval(logits)
    return logits
