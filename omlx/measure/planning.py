"""Checked plan of a requested trial, with estimates of duration and memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Final

from omlx.engine.speculation.cost_model import PLAIN
from omlx.engine.thread import EngineThread
from omlx.errors import BadRequest, EngineDead, ModelError, Reason
from omlx.measure.benchmark import PREFILL_SPEEDUP
from omlx.measure.texts import Kind, question
from omlx.measure.trial import (
    CONTEXT_TOKENS,
    MAX_ROUNDS,
    MIN_ROUNDS,
    PICTURE_FIELD,
    WARM_UP_TOKENS,
    Plan,
    read_prompt,
)
from omlx.models.catalog.reference import draft_mismatch, find_draft
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.footprint import device, weight_bytes
from omlx.models.pool.pool import Pool
from omlx.server.request.generation import GenerationService

MAX_DRAFTS: Final = 3
SNAPSHOT_TIMEOUT_S: Final = 2.0

WEIGHT_BANDWIDTH: Final = {"gpu": 80e9, "cpu": 8e9}
"""Bytes of weights per second — assumed for decoding without a measured rate: modest machines."""

MAX_RATE: Final = 120.0
"""Tokens per second — upper bound of an assumed rate; small models are not bound by bandwidth."""

DISK_BANDWIDTH: Final = 1e9
"""Bytes of weights per second — assumed for loading."""

PROMPT_TOKENS: Final = 250


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's memory in bytes, and whether resident."""

    size_bytes: int
    loaded: bool


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds with `MIN_ROUNDS` and `MAX_ROUNDS` rounds; `guessed` without a measured rate.

    `memory_bytes` add to the resident models; `limit_bytes` bounds all models together, 0 for no
    limit.
    """

    least_s: float
    most_s: float
    guessed: bool
    memory_bytes: int
    limit_bytes: int
    fits: bool


def estimate(
    plan: Plan,
    target: Weights,
    drafts: Sequence[Weights],
    *,
    rate: float | None,
    device: str,
    limit_bytes: int,
) -> Estimate:
    """Estimate a plan; `drafts` in the order there.

    `rate` is the measured plain decode rate in tokens per second, if any; `device` is cpu or gpu.
    """
    kinds, tokens = len(plan.kinds), plan.tokens
    prompt_tokens = PROMPT_TOKENS
    if plan.conversation:
        prompt_tokens += (len(plan.conversation) - PROMPT_TOKENS) // kinds
    guess = min(MAX_RATE, WEIGHT_BANDWIDTH[device] / max(1, target.size_bytes))
    decode_rate = rate or guess
    answer_s = (tokens + prompt_tokens / PREFILL_SPEEDUP) / decode_rate
    warm_up_s = (WARM_UP_TOKENS + prompt_tokens / PREFILL_SPEEDUP) / decode_rate
    answers = sum(len(visit.configurations) for visit in plan.visits)
    draft_bytes = sorted((draft.size_bytes for draft in drafts), reverse=True)
    missing = sorted((draft.size_bytes for draft in drafts if not draft.loaded), reverse=True)
    target_bytes = 0 if target.loaded else target.size_bytes
    visit_s = sum(draft_bytes) / DISK_BANDWIDTH + answers * warm_up_s

    def seconds(rounds: int) -> float:
        # One draft is loaded and warmed up once; several take turns in every round.
        visit_count = rounds if len(drafts) > 1 else 1
        measured_s = rounds * answers * kinds * answer_s
        return target_bytes / DISK_BANDWIDTH + measured_s + visit_s * visit_count

    # While one draft replaces another, both are resident: count the two largest.
    return Estimate(
        least_s=seconds(MIN_ROUNDS),
        most_s=seconds(MAX_ROUNDS),
        guessed=rate is None,
        memory_bytes=target_bytes + sum(missing[:2]),
        limit_bytes=limit_bytes,
        fits=not limit_bytes or target.size_bytes + sum(draft_bytes[:2]) <= limit_bytes,
    )


@dataclass(frozen=True, slots=True)
class Planner:
    """Checks and estimates a requested trial. Loads no model."""

    _engine: EngineThread
    _pool: Pool
    _generations: GenerationService

    async def plan(
        self,
        model: str,
        drafts: Sequence[str],
        kinds: Sequence[Kind],
        tokens: int,
        picture: str = "",
    ) -> Plan:
        """Return a plan for answers of at most `tokens` tokens. Reads tokenizers.

        Raises BadRequest, naming the field, for drafts unfit for the model, for a missing
        conversation, and for a missing or unreadable picture.
        """
        target = self._pool.resolve(model)
        self._check(target, drafts, kinds)
        entries = [await asyncio.to_thread(self._draft, target, draft) for draft in drafts]
        conversation: tuple[int, ...] = ()
        if Kind.CONVERSATION in kinds:
            conversation = self._generations.last_prompts.get(target.id, ())[-CONTEXT_TOKENS:]
            if not conversation:
                raise BadRequest("trial.no_conversation", param="kinds", model=target.id)
        if Kind.PICTURE in kinds:
            if not picture:
                raise BadRequest("trial.no_picture", param=PICTURE_FIELD)
            # Only to refuse an unreadable picture before the trial begins.
            await read_prompt(self._generations, model, question(Kind.PICTURE, 0), 0, picture)
        ids = tuple(dict.fromkeys(entry.id for entry in entries))
        return Plan(target.id, ids, tuple(dict.fromkeys(kinds)), tokens, conversation, picture)

    def has_conversation(self, model: str) -> bool:
        return bool(self._generations.last_prompts.get(model))

    async def estimate(self, plan: Plan, rate: float | None = None) -> Estimate:
        """Estimate a plan. `rate`: plain tokens per second of an earlier trial, if any."""
        names = (plan.model, *plan.drafts)
        target, *drafts = [self._weights(self._pool.resolve(name)) for name in names]
        return estimate(
            plan,
            target,
            drafts,
            rate=await self._measured_rate(plan.model) or rate,
            device=device(),
            limit_bytes=self._pool.limit_bytes,
        )

    def _check(self, target: ModelEntry, drafts: Sequence[str], kinds: Sequence[Kind]) -> None:
        if len(drafts) > MAX_DRAFTS:
            raise BadRequest(
                "request.too_many",
                param="drafts",
                field="drafts",
                count=len(drafts),
                limit=MAX_DRAFTS,
            )
        if not kinds:
            raise BadRequest("trial.no_kind", param="kinds")
        if drafts and self._pool.speculation(target.id).settings.no_draft:
            raise BadRequest("spec.off.no_draft", param="drafts")

    def _draft(self, target: ModelEntry, name: str) -> ModelEntry:
        """Return the draft `name`. Raises BadRequest if unknown or incompatible with `target`."""
        entry = find_draft(name, self._pool.registry)
        if isinstance(entry, Reason):
            raise BadRequest(entry.code, param="drafts", **entry.params)
        try:
            reason = draft_mismatch(target, entry)
        except ModelError as error:
            reason = error.reason
        if reason is not None:
            raise BadRequest(reason.code, param="drafts", **reason.params)
        return entry

    def _weights(self, entry: ModelEntry) -> Weights:
        dtype = self._pool.speculation(entry.id).settings.dtype
        resident = self._pool.residents.weights_of(entry, dtype)
        if resident is not None:
            return Weights(resident.size_bytes, loaded=True)
        return Weights(weight_bytes(entry, dtype), loaded=False)

    async def _measured_rate(self, model: str) -> float | None:
        """Return a resident model's measured plain rate in tokens per second, if any."""
        snapshot = None
        with suppress(TimeoutError, EngineDead):
            snapshot = await asyncio.wait_for(
                asyncio.wrap_future(self._engine.snapshot(model)), SNAPSHOT_TIMEOUT_S
            )
        if snapshot is None:
            return None
        for row in snapshot.costs["target"]:
            if row["width"] == PLAIN and row["seconds"]:
                seconds: float = median(row["seconds"])
                return 1 / seconds
        return None
