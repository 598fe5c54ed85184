"""An EngineLoop from a loaded model and, where it can be run, a draft model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from omlx.engine.device.facts import ModelFacts, facts_of, measure_exactness, probed, strict_facts
from omlx.engine.device.gpu import attention_kernels
from omlx.engine.device.model import MakeCache, Model, cache_maker, weight_bytes
from omlx.engine.device.rewind import rewind_refusal
from omlx.engine.device.runner import Runner
from omlx.engine.device_errors import isolate
from omlx.engine.disk.tier import Disk, DiskTier
from omlx.engine.loop import DRAFT_SHARE, EngineLoop
from omlx.engine.memory import MemoryGuard
from omlx.engine.prefix.reuse import PrefixReuse
from omlx.engine.speculation.chip_costs import expected_costs
from omlx.engine.speculation.cost_model import CostModel
from omlx.engine.speculation.drafter import Drafter
from omlx.engine.speculation.drafters.draft_model import CATCH_UP_CHUNK, DraftModel
from omlx.engine.speculation.drafters.head import HeadDrafter
from omlx.engine.speculation.drafters.ngram import NgramDrafter
from omlx.engine.speculation.speculator import Speculator
from omlx.engine.step.prefill import Activations, FitPass, PassShape, PrefillChunk
from omlx.engine.step.scheduler import Scheduler
from omlx.engine.types import Limits, run_through
from omlx.engine.vision.reader import Vision
from omlx.errors import Reason


def build_loop(
    model: Model,
    vocab_size: int,
    limits: Limits,
    *,
    draft: Model | None = None,
    draft_name: str | None = None,
    no_draft_reason: Reason | None = None,
    heads: Mapping[str, HeadDrafter | Reason] | None = None,
    cost_model: CostModel | None = None,
    make_cache: MakeCache | None = None,
    memory: MemoryGuard | None = None,
    facts: ModelFacts | None = None,
    runner: Runner | None = None,
    vision: Vision | None = None,
    disks: tuple[Disk, Disk] = (None, None),
    draft_shape: PassShape | None = None,
) -> EngineLoop:
    """Return a loop that serves `model`, whose tokenizer has `vocab_size` tokens.

    Ids that the tokenizer has and the model has not are outside the loop's vocabulary. Without
    `facts`, runs the short passes that they take. `vision` lets it read images. `draft` proposes
    under the name `draft_name`; `no_draft_reason` says why there is none. `heads` has the trained
    drafter of this model, and why there is none of other kinds, by kind. `cost_model` holds earlier
    measurements and is updated. `memory` is shared with other models. `make_cache` replaces the
    caches. A `runner` reaches all stages. `disks` store prefixes; `draft_shape` is the draft's.
    """
    kv_bits = None if facts is None else facts.kv_bits
    make_cache, cost_model = make_cache or cache_maker(model, kv_bits), cost_model or CostModel()
    cost_model.target.expected = expected_costs(model)
    if facts is None:
        facts = run_through(probed(facts_of(model, vocab_size, make_cache), model, make_cache))
    runner = runner or Runner(model, facts.vocab_size, make_cache, vision=vision)
    draft_bytes = limits.prefix_bytes // DRAFT_SHARE if draft is not None else 0
    nbytes = limits.prefix_bytes - draft_bytes
    known, first = facts.vocab_size, runner.prefill_first
    limits = replace(limits, vocab_size=known, missing_ids=vocab_size - known, prefill_first=first)
    facts, own = _bounded(facts, limits, model, make_cache, cost_model)
    kept = (facts.layout, limits.block_tokens, nbytes, facts.uncacheable, disks[0])
    scheduler = Scheduler(
        own,
        facts.traits,
        Speculator([], cost_model=cost_model),
        PrefixReuse(*kept, own.bounds),
        runner.sizes,
        facts.unbatchable,
        memory=memory,
        no_uneven=facts.no_uneven,
        tower=None if runner.vision is None else runner.vision.tower.facts,
        activations=facts.activations(attention_kernels()),
    )
    loop = EngineLoop(runner, scheduler, disks)
    built: DraftModel | Reason | None = no_draft_reason
    if draft is not None:
        fit = _catch_up_passes(limits, draft_shape, scheduler.memory)
        kept_by = known, draft_bytes, limits, disks[1], fit
        built = _build_draft(draft_name or "draft", draft, *kept_by)
        cost_model.draft_share = _share(draft, facts) or cost_model.draft_share
    _use_drafters(loop, facts, {DraftModel.kind: built, **(heads or {})})
    return loop


def _bounded(
    facts: ModelFacts, limits: Limits, model: Model, make_cache: MakeCache, cost_model: CostModel
) -> tuple[ModelFacts, Limits]:
    """Return what a strict model may do, which is measured if it was not before; else all."""
    if not limits.strict:
        return facts, limits
    if cost_model.exactness is None:
        steps = measure_exactness(model, make_cache, limits.vocab_size, limits.context_length)
        cost_model.exactness = run_through(steps)
    return strict_facts(facts, limits, cost_model.exactness)


def _catch_up_passes(limits: Limits, shape: PassShape | None, memory: MemoryGuard) -> FitPass:
    """Return the bounds of the passes in which a draft model of this shape catches up."""
    bounds = replace(limits, prefill_chunk=CATCH_UP_CHUNK, prefill_first=None)
    return PrefillChunk(bounds, Activations(shape, attention_kernels()), memory.pass_room).fit_alone


def _share(draft: Model, facts: ModelFacts) -> float:
    """Return the draft model's weights as a share of the target's; 0 where it has none."""
    return weight_bytes(draft) / facts.weight_bytes if facts.weight_bytes else 0.0


def _use_drafters(
    loop: EngineLoop, facts: ModelFacts, by_kind: Mapping[str, Drafter | Reason | None]
) -> None:
    """Let the loop draft by lookups, and by drafters without a reason against them."""
    drafters: list[Drafter] = [NgramDrafter()]
    missing: dict[str, Reason] = {}
    for kind, built in by_kind.items():
        if isinstance(built, Reason):
            missing[kind] = built
        elif built is not None:
            drafters.append(built)
    loop.use_drafters(drafters, facts.no_rewind, missing)


def _build_draft(
    name: str,
    draft: Model,
    vocab_size: int,
    prefix_bytes: int,
    limits: Limits,
    disk: Disk,
    fit: FitPass,
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
            disk=disk if isinstance(disk, DiskTier) else None,
            fit=fit,
        )
    detail = f"{type(outcome.error).__name__}: {outcome.error}"
    return Reason("spec.off.draft_failed", {"detail": detail})
