"""Next turns: the fixed part behind a tool call, computed while the client's tool runs.

    prompt │ answer with calls │ end of message, header of the result │ result, generation prompt
    cached │ as the template renders them: computed ahead             │ computed on arrival

Templates may render an answer otherwise than it was generated, without its reasoning for example:
then that is computed ahead as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from omlx.errors import EngineDead, OmlxError
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import ServedModel
from omlx.server.beginnings.background import BackgroundPrefill
from omlx.server.beginnings.beginning import shared_length
from omlx.server.request import tooling
from omlx.server.request.engine_requests import render_conversation
from omlx.server.request.generation_request import GenerationRequest
from omlx.settings.schema import Settings
from omlx.text.events import (
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
)

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

_FIRST_CHARACTERS: Final = ("A", "\n ", "{")
"""Beginnings of tool results — the common prefix of their prompts is the fixed part."""

_REASONING: Final = "reasoning_content"

log = logging.getLogger("omlx.prefix")


@dataclass(slots=True)
class AnswerMessage:
    """A choice's message as clients send it back, collected from its events."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, ToolCallStart] = field(default_factory=dict)
    arguments: dict[int, list[str]] = field(default_factory=dict)

    def add(self, event: OutputEvent) -> None:
        match event:
            case TextDelta(text=text):
                self.text.append(text)
            case ReasoningDelta(text=text):
                self.reasoning.append(text)
            case ToolCallStart(index=index):
                self.calls[index], self.arguments[index] = event, []
            case ToolCallArguments(index=index, text=text):
                self.arguments[index].append(text)

    @property
    def message(self) -> dict[str, Any]:
        """The message with its calls, without reasoning."""
        calls = [
            tooling.call(call.id, call.name, "".join(self.arguments[index]))
            for index, call in sorted(self.calls.items())
        ]
        return {"role": "assistant", "content": "".join(self.text), "tool_calls": calls}


class NextTurns:
    """Prepares next turns, unless `prewarm` is off. On the event loop."""

    def __init__(
        self, prefill: BackgroundPrefill, pool: Pool, settings: Callable[[], Settings]
    ) -> None:
        self._prefill = prefill
        self._pool = pool
        self._settings = settings
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, served: ServedModel, request: GenerationRequest, answer: AnswerMessage) -> None:
        """Prepare the turn behind an answer that has ended, if it calls a tool."""
        if answer.calls and self._settings().prewarm != "off":
            task = asyncio.create_task(self._prepare(served, request, answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def shut_down(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _prepare(
        self, served: ServedModel, request: GenerationRequest, answer: AnswerMessage
    ) -> None:
        try:
            lease = await self._pool.lease(served.id)
            try:
                prompts = await asyncio.to_thread(
                    fixed_parts, served.tokenizer, request, answer, served.context_length
                )
                for tokens in prompts:
                    await self._prefill.fill(served.id, tokens)
            finally:
                lease.release()
        except EngineDead:
            pass
        except OmlxError as error:  # the client's next turn has the same error, or none
            fields = {"model": served.id, "detail": error.message}
            log.info("a next turn was not computed ahead", extra={"fields": fields})
        except Exception:  # the edge of a background task
            log.exception("a next turn was not computed ahead")


def fixed_parts(
    tokenizer: TokenizerWrapper,
    request: GenerationRequest,
    answer: AnswerMessage,
    context_length: int,
) -> list[tuple[int, ...]]:
    """Return the tokens that are known of the next turn, up to the first result.

    Two prompts where it is unknown whether the client returns reasoning. Raises BadRequest.
    """
    prompts: list[tuple[int, ...]] = []
    for message in _variants(request.messages, answer):
        results = [_conversation(request, message, text) for text in _FIRST_CHARACTERS]
        shared: tuple[int, ...] | None = None
        for result in results:
            tokens = render_conversation(tokenizer, result, context_length).tokens
            shared = tokens if shared is None else shared[: shared_length(shared, tokens)]
        if shared and shared not in prompts:
            prompts.append(shared)
    return prompts


def _variants(
    messages: Sequence[Mapping[str, Any]], answer: AnswerMessage
) -> Iterator[dict[str, Any]]:
    """Yield the answer without and with reasoning, as earlier answers have come back."""
    message, reasoning = answer.message, "".join(answer.reasoning)
    earlier = [_REASONING in one for one in messages if one["role"] == "assistant"]
    if not reasoning or True not in earlier:
        yield message
    if reasoning and (True in earlier or not earlier):
        yield message | {_REASONING: reasoning}


def _conversation(
    request: GenerationRequest, message: Mapping[str, Any], text: str
) -> GenerationRequest:
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": text}
        for call in message["tool_calls"]
    ]
    conversation = [dict(one) for one in (*request.messages, message, *results)]
    messages = tooling.with_names(conversation)
    return replace(request, messages=messages, continue_last=False)
