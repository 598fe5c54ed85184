"""An EngineLoop from a loaded model and, where it can be run, a draft model."""

from __future__ import annotations

from dataclasses import replace

from omlx.engine.batch_probe import batching_refusal
from omlx.engine.isolation import isolate
from omlx.engine.limits import Limits
from omlx.engine.loop import DRAFT_SHARE, EngineLoop
from omlx.engine.memory import MemoryGuard
from omlx.engine.model import MakeCache, Model, cache_maker, id_limit, weight_bytes
from omlx.engine.piece import Layout
from omlx.engine.prefix.payload import layout_of, uncacheable
from omlx.engine.prefix.reuse import PrefixReuse
from omlx.engine.rewind import rewind_refusal
from omlx.engine.runner import Runner
from omlx.engine.scheduler import Scheduler
from omlx.engine.speculation.cost_model import CostModel
from omlx.engine.speculation.drafter import Drafter
from omlx.engine.speculation.drafters.draft_model import DraftModel
from omlx.engine.speculation.drafters.ngram import NgramDrafter
from omlx.engine.speculation.speculator import Speculator
from omlx.errors import Reason


def build_loop(
    model: Model,
    vocab_size: int,
    limits: Limits,
    *,
    draft: Model | None = None,
    draft_name: str | None = None,
    no_draft_reason: Reason | None = None,
    cost_model: CostModel | None = None,
    make_cache: MakeCache | None = None,
    memory: MemoryGuard | None = None,
) -> EngineLoop:
    """Return a loop that serves `model`, whose tokenizer has `vocab_size` tokens.

    Ids that the tokenizer has and the model has not are outside the loop's vocabulary. Runs a short
    probe of batching.

    `draft` proposes under the name `draft_name`; `no_draft_reason` says why there is none.
    `cost_model` holds measurements of earlier runs and is updated. `memory` is shared with other
    models. `make_cache` replaces the model's own caches.
    """
    make_cache = make_cache or cache_maker(model)
    tokenizer_size, vocab_size = vocab_size, min(vocab_size, id_limit(model, make_cache))
    cost_model = cost_model or CostModel()
    runner = Runner(model, vocab_size, make_cache)
    unbatchable = batching_refusal(model, make_cache, vocab_size)
    uncached = uncacheable(make_cache())
    layout = layout_of(model, make_cache) if uncached is None else Layout(0)
    draft_bytes = limits.prefix_bytes // DRAFT_SHARE if draft is not None else 0
    prefix = PrefixReuse(layout, limits.block_tokens, limits.prefix_bytes - draft_bytes, uncached)
    loop = EngineLoop(
        runner,
        Scheduler(
            replace(limits, vocab_size=vocab_size, missing_ids=tokenizer_size - vocab_size),
            runner.traits,
            Speculator([], cost_model=cost_model),
            prefix,
            runner.caches,
            unbatchable,
            memory=memory,
        ),
    )
    drafters: list[Drafter] = [NgramDrafter()]
    if draft is not None:
        built = _build_drafter(draft_name or "draft", draft, vocab_size, draft_bytes, limits)
        if isinstance(built, Reason):
            no_draft_reason = built
        else:
            drafters.append(built)
            no_draft_reason = None
            if weight_bytes(draft) and weight_bytes(model):
                cost_model.draft_share = weight_bytes(draft) / weight_bytes(model)
    loop.use_drafters(drafters, rewind_refusal(make_cache(), model), no_draft_reason)
    return loop


def _build_drafter(
    name: str, draft: Model, vocab_size: int, prefix_bytes: int, limits: Limits
) -> DraftModel | Reason:
    """Return the drafter, or why the target must serve without it."""
    make_cache = cache_maker(draft)
    refusal = rewind_refusal(make_cache())
    if refusal is not None:
        return refusal
    with isolate() as outcome:
        return DraftModel(
            name,
            draft,
            vocab_size,
            make_cache,
            prefix_bytes=prefix_bytes,
            block_tokens=limits.block_tokens,
        )
    detail = f"{type(outcome.error).__name__}: {outcome.error}"
    return Reason("spec.off.draft_failed", {"detail": detail})
