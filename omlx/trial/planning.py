"""From what somebody wants to try to a plan that can be carried out, and what it will take."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from statistics import median
from typing import Final

from omlx.engine.speculation.cost_model import PLAIN
from omlx.engine.thread import EngineThread
from omlx.errors import BadRequest, EngineDead, ModelError, Reason
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.reference import find_draft
from omlx.models.package.compatibility import draft_mismatch
from omlx.models.pool.footprint import device
from omlx.models.pool.pool import Pool
from omlx.server.generation import Generations
from omlx.trial.estimate import PROMPT_TOKENS, Estimate, Weights, estimate
from omlx.trial.run_sample import CONTEXT_TOKENS
from omlx.trial.texts import Kind
from omlx.trial.trial import Plan

MAX_DRAFTS: Final = 3
_PATIENCE_S: Final = 2.0


class Planner:
    def __init__(self, engine: EngineThread, pool: Pool, generations: Generations) -> None:
        self._engine = engine
        self._pool = pool
        self._generations = generations

    async def plan(
        self, model: str, drafts: Sequence[str], kinds: Sequence[Kind], tokens: int
    ) -> Plan:
        """Raises BadRequest, naming the field, for drafts that do not fit and for a conversation that there is not.

        `tokens` is how long an answer may be. Reads tokenizers; loads nothing.
        """
        target = self._pool.resolve(model)
        if len(drafts) > MAX_DRAFTS:
            raise BadRequest(
                "request.too_many",
                param="drafts",
                field="drafts",
                count=len(drafts),
                limit=MAX_DRAFTS,
            )
        if not kinds:
            raise BadRequest(
                "request.empty", param="kinds", field="kinds", detail="choose at least one"
            )
        if drafts and self._pool.speculation(target.id).settings.no_draft:
            raise BadRequest("spec.off.no_draft", param="drafts")
        found = [await asyncio.to_thread(self._draft, target, draft) for draft in drafts]
        conversation: tuple[int, ...] = ()
        if Kind.CONVERSATION in kinds:
            conversation = self._generations.newest.get(target.id, ())[-CONTEXT_TOKENS:]
            if not conversation:
                raise BadRequest("trial.no_conversation", param="kinds", model=target.id)
        ids = tuple(dict.fromkeys(draft.id for draft in found))
        return Plan(target.id, ids, tuple(dict.fromkeys(kinds)), tokens, conversation)

    def has_conversation(self, model: str) -> bool:
        return bool(self._generations.newest.get(model))

    async def estimate(self, plan: Plan, rate: float | None = None) -> Estimate:
        """`rate` is what plain decoding was known to do earlier, in tokens per second."""
        target, *drafts = [
            self._weights(self._pool.resolve(name)) for name in (plan.model, *plan.drafts)
        ]
        prompts = PROMPT_TOKENS * len(plan.kinds)
        if plan.conversation:
            prompts += len(plan.conversation) - PROMPT_TOKENS
        return estimate(
            drafts=plan.drafts,
            kinds=len(plan.kinds),
            tokens=plan.tokens,
            target=target,
            weights=drafts,
            rate=await self._measured(plan.model) or rate,
            device=device(),
            limit_bytes=self._pool.limit_bytes,
            prompt_tokens=prompts // len(plan.kinds),
        )

    def _draft(self, target: ModelEntry, name: str) -> ModelEntry:
        found = find_draft(name, self._pool.registry)
        try:
            reason = found if isinstance(found, Reason) else draft_mismatch(target, found)
        except ModelError as error:
            reason = Reason(error.code, error.params)
        if isinstance(found, Reason) or reason is not None:
            assert reason is not None
            raise BadRequest(reason.code, param="drafts", **reason.params)
        return found

    def _weights(self, entry: ModelEntry) -> Weights:
        dtype = self._pool.speculation(entry.id).settings.dtype
        held = self._pool.residents.held(entry, dtype)
        if held is not None:
            return Weights(held.size_bytes, loaded=True)
        wide = entry.quantization is None and dtype in ("auto", "float32") and device() == "cpu"
        return Weights(
            entry.size_bytes * (2 if wide else 1), loaded=False
        )  # most files hold 16-bit weights

    async def _measured(self, model: str) -> float | None:
        """Plain decoding's tokens per second, if the model is loaded and has been timed."""
        snapshot = None
        with suppress(TimeoutError, EngineDead):
            snapshot = await asyncio.wait_for(
                asyncio.wrap_future(self._engine.snapshot(model)), _PATIENCE_S
            )
        if snapshot is None:
            return None
        timed = [
            row["seconds"]
            for row in snapshot.costs["target"]
            if row["width"] == PLAIN and row["seconds"]
        ]
        return 1 / median(timed[0]) if timed else None
