"""Next turns: their known parts, computed while the client's tool runs or the user reads.

    prompt │ answer with calls │ end of message, header of the result │ result, generation prompt
    cached │ as the template renders them: computed ahead             │ computed on arrival

Templates may render an answer otherwise than it was generated, without its reasoning for example:
then that is computed ahead as well. Once a conversation fills most of the context, so is its
compaction, in the shape of the program's last one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from omlx.errors import EngineDead, OmlxError
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import ServedModel
from omlx.server.beginnings.beginning import shared_prefix
from omlx.server.beginnings.compaction import (
    LEAST_SHARE,
    Compactions,
    Conversation,
    Shape,
    asks_to_compact,
)
from omlx.server.beginnings.foresight import program
from omlx.server.beginnings.prewarmer import BackgroundPrefill
from omlx.server.request import tooling
from omlx.server.request.engine_requests import render_conversation
from omlx.server.request.generation_request import GenerationRequest
from omlx.server.request.stream import GenerationStream
from omlx.server.request.tooling import AnswerMessage
from omlx.settings.schema import Settings

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

_FIRST_CHARACTERS: Final = ("A", "\n ", "{")
"""Beginnings of tool results — the common prefix of their prompts is the fixed part."""

LEAST_TOKENS: Final = 16
"""Tokens — fewer save less time than a pass of their own takes."""

_REASONING: Final = "reasoning_content"

log = logging.getLogger("omlx.prefix")


class NextTurns:
    """Prepares next turns, unless `prewarm` is off. On the event loop.

    `compactions` learns from requests.
    """

    def __init__(
        self,
        prefill: BackgroundPrefill,
        pool: Pool,
        settings: Callable[[], Settings],
        compactions: Compactions | None = None,
    ) -> None:
        self._prefill = prefill
        self._pool = pool
        self._settings = settings
        self._tasks: dict[asyncio.Task[None], Turn | None] = {}
        self.compactions = compactions or Compactions()

    def watch(self, stream: GenerationStream, request: GenerationRequest, client: str) -> None:
        """Learn from a request, and prepare the turn behind its answer once that has ended."""
        served, name = stream.served, program(client)
        for task, prepared in [*self._tasks.items()]:
            if prepared is not None and prepared.precedes(request):
                task.cancel()  # the rest would only delay it
        if asks_to_compact(request):
            saves = self._settings().prewarm != "off" and self._prefill.on_disk(served.id)
            self._start(asyncio.to_thread(self._learn, served.id, name, request, saves))
        elif request.continues:
            turn = Turn(request, AnswerMessage())
            conversation = self.compactions.note(served.id, name, request)
            stream.listener = turn.answer.add
            stream.completed = partial(self._begin, served, name, turn, conversation)

    def _learn(self, model: str, name: str, request: GenerationRequest, saves: bool) -> None:
        try:
            if self.compactions.learn(model, name, request) and saves:
                self.compactions.save(model)
        except Exception:  # the edge of a background task
            log.exception("a compaction was not learnt")

    def _begin(
        self, served: ServedModel, name: str, turn: Turn, conversation: Conversation
    ) -> None:
        conversation.answer = turn.answer.message()
        conversation.filled = turn.answer.filled
        filled = turn.answer.filled >= LEAST_SHARE
        if (turn.answer.calls or filled) and self._settings().prewarm != "off":
            self._start(self._prepare(served, name, turn), turn)

    def _start(
        self, work: Coroutine[Any, Any, None], turn: Turn | None = None
    ) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks[task] = turn
        task.add_done_callback(self._tasks.pop)
        return task

    def shut_down(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _prepare(self, served: ServedModel, name: str, turn: Turn) -> None:
        lease = self._pool.lease_loaded(served.id)
        if lease is None:  # to be unloaded, which must not load the model again
            return
        try:
            try:
                model = served.tokenizer, served.context_length
                if turn.answer.calls:
                    for tokens in await asyncio.to_thread(turn.fixed_parts, *model):
                        await self._prefill.fill(served.id, tokens, beside=True, least=LEAST_TOKENS)
                known = await self.compactions.shapes(served.id, name)
                shapes = [one for one in known if turn.answer.filled >= one.prepared_from]
                for tokens in await asyncio.to_thread(turn.compactions, *model, shapes):
                    if not (await self._prefill.fill(served.id, tokens))[0]:
                        break  # a request came, or prefixes are deleted
            finally:
                lease.release()
        except EngineDead:
            pass
        except OmlxError as error:  # the client's next turn has the same error, or none
            fields = {"model": served.id, "detail": error.message}
            log.info("a next turn was not computed ahead", extra={"fields": fields})
        except Exception:  # the edge of a background task
            log.exception("a next turn was not computed ahead")


@dataclass(frozen=True, slots=True)
class Turn:
    """A request and the answer that has ended."""

    request: GenerationRequest
    answer: AnswerMessage

    def precedes(self, request: GenerationRequest) -> bool:
        """Whether a request is a later turn of the conversation."""
        own, messages = self.request.messages, request.messages
        return len(own) < len(messages) and [*own] == [*messages[: len(own)]]

    def fixed_parts(
        self, tokenizer: TokenizerWrapper, context_length: int
    ) -> list[tuple[int, ...]]:
        """Return the known tokens of the next turn, up to the first result.

        Two prompts where it is unknown whether the client returns reasoning. Raises BadRequest.
        """
        prompts: dict[tuple[int, ...], None] = {}
        for message in self._messages():
            following = [self._with_results(message, text) for text in _FIRST_CHARACTERS]
            prompts[_shared(tokenizer, following, context_length)] = None
        return list(prompts)

    def compactions(
        self, tokenizer: TokenizerWrapper, context_length: int, shapes: Sequence[Shape]
    ) -> list[tuple[int, ...]]:
        """Return the known tokens of the turn's compactions: all, or up to the first result.

        Raises BadRequest, also if one is longer than the context.
        """
        prompts: dict[tuple[int, ...], None] = {}
        for shape, message in product(shapes, self._messages()):
            unknown = self.answer.calls and not shape.transcript
            texts = _FIRST_CHARACTERS if unknown else ("",)
            made = [shape.of(self._with_results(message, text)) for text in texts]
            if following := [one for one in made if one is not None]:
                prompts[_shared(tokenizer, following, context_length)] = None
        return list(prompts)

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Yield the answer without and with reasoning, as earlier answers have come back."""
        message = self.answer.message(self.request.call_id)
        reasoning = "".join(self.answer.reasoning)
        answers = [one for one in self.request.messages if one["role"] == "assistant"]
        returned = [_REASONING in one for one in answers]
        if not reasoning or True not in returned:
            yield message
        if reasoning and (True in returned or not returned):
            yield message | {_REASONING: reasoning}

    def _with_results(self, message: Mapping[str, Any], text: str) -> GenerationRequest:
        """Return a request with the answer, and results of its calls that begin with `text`."""
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": text}
            for call in message.get("tool_calls", ())
        ]
        conversation = [dict(one) for one in (*self.request.messages, message, *results)]
        messages = tooling.with_names(conversation)
        return replace(self.request, messages=messages, continue_last=False)


def _shared(
    tokenizer: TokenizerWrapper, following: Sequence[GenerationRequest], context_length: int
) -> tuple[int, ...]:
    """Return the tokens with which all prompts begin; of a single one all but the last."""
    prompts = [render_conversation(tokenizer, one, context_length).tokens for one in following]
    return shared_prefix(prompts) if len(prompts) > 1 else prompts[0][:-1]
