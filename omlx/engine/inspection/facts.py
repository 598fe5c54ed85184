"""What the scheduler must know of a model: its vocabulary, the abilities and sizes of its caches.

`facts_of` looks at classes and shapes and runs nothing, so that a model in stages can be judged as
a whole before it is cut. `probed` adds what only passes show.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import isfinite
from typing import Final, cast

import mlx.core as mx

from omlx.engine.inspection.batch_probe import (
    batching_faults,
    batching_refusal,
    layer_refusal,
    merge_refusal,
    uneven_faults,
    uneven_refusal,
)
from omlx.engine.model import MakeCache, Model, id_limit, weight_bytes
from omlx.engine.piece import Layout
from omlx.engine.prefill import Activations, Kernels, PassShape
from omlx.engine.prefix.payload import layout_of, uncacheable
from omlx.engine.rewind import rewind_refusal, traits
from omlx.engine.types import Steps, Traits
from omlx.errors import Reason


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`vocab_size` is the number of ids that tokenizer and model both have; `weight_bytes` what a
    pass reads at most. In stages `own_layout` is that of this rank's layers, `layout` that of all.

    Reasons say what the model cannot do: `unbatchable`, share passes between rows; `no_uneven`,
    read windows of different lengths in such a pass; `uncacheable`, keep prefixes; `no_rewind`,
    roll back, and so verify drafts. `shape` tells activations; None: the config does not.
    """

    vocab_size: int
    weight_bytes: int
    traits: Traits
    layout: Layout
    unbatchable: Reason | None
    no_uneven: Reason | None
    uncacheable: Reason | None
    no_rewind: Reason | None
    own_layout: Layout | None = None
    shape: PassShape | None = None

    def activations(self, kernels: Kernels) -> Activations:
        """Return the estimates for passes on a device with these attention kernels."""
        window = None if self.layout.row_bytes else self.layout.window
        return Activations(self.shape, kernels, window)


def facts_of(model: Model, vocab_size: int, make_cache: MakeCache) -> ModelFacts:
    """Return what is known of a model whose tokenizer has `vocab_size` tokens. Runs nothing."""
    cache = make_cache()
    return ModelFacts(
        vocab_size=min(vocab_size, id_limit(model, make_cache)),
        weight_bytes=weight_bytes(model),
        traits=traits(cache),
        layout=Layout(0),
        unbatchable=merge_refusal(model, make_cache),
        no_uneven=layer_refusal(make_cache),
        uncacheable=uncacheable(cache),
        no_rewind=rewind_refusal(cache, model),
    )


def probed(facts: ModelFacts, model: Model, make_cache: MakeCache) -> Steps[ModelFacts]:
    """Add the layout of the caches and how rows can share a batch: a short pass a step."""
    unbatchable = yield from batching_refusal(model, make_cache, facts.vocab_size)
    no_uneven = unbatchable
    if unbatchable is None:
        no_uneven = yield from uneven_refusal(model, make_cache, facts.vocab_size)
    layout = _layout(facts, model, make_cache)
    return replace(facts, layout=layout, unbatchable=unbatchable, no_uneven=no_uneven)


def probed_in_stages(facts: ModelFacts, stage: Model, make_cache: MakeCache) -> ModelFacts:
    """As `probed`, on every rank of a staged model at once: the layout is that of own layers.

    The passes depend on `facts` alone, which are those of the whole model. Raises what they raise.
    """
    layout = _layout(facts, stage, make_cache)
    unbatchable, no_uneven = facts.unbatchable, facts.no_uneven
    if unbatchable is None:
        faults = [*batching_faults(stage, make_cache, facts.vocab_size)]
        unbatchable = _first("batch.off.probe", faults)
    if no_uneven is None:
        faults = [*uneven_faults(stage, make_cache, facts.vocab_size)]
        no_uneven = _first("batch.off.uneven", faults)
    return replace(
        facts,
        layout=layout,
        own_layout=layout,
        unbatchable=unbatchable,
        no_uneven=no_uneven,
    )


def _first(code: str, faults: Iterable[str | None]) -> Reason | None:
    fault = next(filter(None, faults), None)
    return None if fault is None else Reason(code, {"error": fault})


def _layout(facts: ModelFacts, model: Model, make_cache: MakeCache) -> Layout:
    if facts.uncacheable is not None:
        return Layout(0)
    return layout_of(model, make_cache)


_TOKENS: Final = 8


def forward_failure(model: Model, make_cache: MakeCache, vocab_size: int) -> Reason | None:
    """Return a reason if a pass over ids below `vocab_size` gives numbers that are not finite.

    One pass, as every rank of a model in stages must run it. Finds damage that reaches the logits
    of the probe, not weights whose damage gives finite numbers or belongs to other tokens. The
    model is not modified. Raises what it raises.
    """
    tokens = mx.random.randint(0, vocab_size, (1, _TOKENS), key=mx.random.key(0))
    logits = model(tokens, cache=make_cache())[0]  # [_TOKENS, V]
    peaks = cast(list[float], logits.max(axis=-1).tolist())  # NaN is the largest
    return None if all(map(isfinite, peaks)) else Reason("model.not_finite")
