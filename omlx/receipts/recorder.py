"""Recorder of a request's choices, kept with their receipts when they finish."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field, replace

from omlx.engine.types import FinishReason, Request
from omlx.models.pool.served import ServedModel
from omlx.receipts.kept import KeptAnswer, current_versions
from omlx.receipts.store import AnswerStore
from omlx.records import Receipt
from omlx.storage.database import Failure
from omlx.text.constraint import Constraint
from omlx.text.output import OutputSpec

log = logging.getLogger("omlx.receipts")


@dataclass(slots=True)
class _Choice:
    request: Request
    spec: OutputSpec
    constraint: Constraint
    tokens: list[int] = field(default_factory=list)
    finish: FinishReason = FinishReason.CANCELLED


class Recorder:
    """Recorder for the choices of one request. Lives on the event loop."""

    def __init__(self, store: AnswerStore, served: ServedModel) -> None:
        self._store, self._served = store, served
        self._choices: dict[int, _Choice] = {}

    def begin(
        self, number: int, request: Request, spec: OutputSpec, constraint: Constraint
    ) -> None:
        """Record choice `number` from its first token on."""
        self._choices[number] = _Choice(request, spec, constraint)

    def commit(self, number: int, tokens: tuple[int, ...]) -> None:
        self._choices[number].tokens += tokens

    def finish(self, number: int, reason: FinishReason) -> None:
        self._choices[number].finish = reason

    async def keep(self, number: int) -> Receipt:
        """Store a finished choice, and return its receipt.

        Choices with images are not stored; a failed write is logged. Both set `kept` to False.
        """
        answer = self._answer(number, self._choices.pop(number))
        return await asyncio.to_thread(self._keep, answer)

    def _answer(self, number: int, choice: _Choice) -> KeptAnswer:
        served, request = self._served, choice.request
        room = served.context_length - len(request.tokens)
        return KeptAnswer(
            id=f"{request.group}-{number}",
            model=served.id,
            at=time.time(),
            identity=served.identity,
            versions=current_versions(),
            prompt=request.tokens,
            answer=tuple(choice.tokens),
            sampling=request.sampling,
            limit=room if request.max_tokens is None else min(room, request.max_tokens),
            spec=replace(choice.spec, salt=""),  # ids of calls, no tokens, depend on it
            constraint=choice.constraint,
            finish=choice.finish,
            exactness=str(served.exactness),
        )

    def _keep(self, answer: KeptAnswer) -> Receipt:
        receipt = answer.receipt()
        if min(answer.prompt) < 0:  # ids of images
            return replace(receipt, kept=False)
        try:
            self._store.keep(answer, receipt)
        except Failure as error:
            log.warning("answer not kept", extra={"fields": {"detail": str(error)}})
            return replace(receipt, kept=False)
        return receipt
