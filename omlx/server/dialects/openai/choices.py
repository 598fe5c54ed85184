"""What chat and text completions share: answers of several choices, whole or in chunks.

Pure; no I/O.

A stream is: chunks of each choice, one of them with its finish reason, and with `include_usage` a
last chunk without choices. `timings` and `warnings` are in the last chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from omlx.engine.types import FinishReason, TokenLogprob
from omlx.errors import OmlxError, Reason
from omlx.server.http import errors
from omlx.server.request.dialect import ChoiceEvent, Json
from omlx.server.request.stream import GenerationStream
from omlx.server.request.usage import receipt, timings, usage, warnings
from omlx.text.events import Finish, OutputEvent

_REASONS: Final = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "stop",
}


@dataclass(frozen=True, slots=True)
class Head:
    """`token_bytes` is None unless logprobs were requested."""

    id: str
    model: str
    created: int
    token_bytes: Callable[[int], bytes] | None = None
    warnings: tuple[Reason, ...] = ()

    @classmethod
    def of(cls, stream: GenerationStream, *, logprobs: bool = False) -> Head:
        token_bytes = stream.served.token_bytes if logprobs else None
        return cls(stream.id, stream.model, stream.created, token_bytes, stream.warnings)

    def body(self, kind: str, choices: Sequence[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
        }


class ChoicesEncoder:
    """Encodes `total` choices of `prompts` prompts. A subclass encodes the content of a choice."""

    KIND: ClassVar[str]
    CHUNK_KIND: ClassVar[str]
    CONTENT: ClassVar[str]
    """The field of a chunk's choice that holds its content."""
    PROMPT: ClassVar[str]
    """The field of the request that holds the prompt, for errors."""

    def __init__(self, head: Head, total: int, prompts: int, *, include_usage: bool) -> None:
        self._head = head
        self._total = total
        self._prompts = prompts
        self._include_usage = include_usage
        self._finishes: dict[int, Finish] = {}

    def feed(self, events: Sequence[ChoiceEvent]) -> list[Json]:
        chunks: list[Json] = []
        for event in events:
            chunks += self._encode(event.choice, event.event)
        return chunks

    def failed(self, error: OmlxError) -> list[Json]:
        return [errors.openai(error, self.PROMPT)]

    def body(self, events: Sequence[ChoiceEvent]) -> Json:
        by_choice: dict[int, list[OutputEvent]] = {}
        for event in events:
            by_choice.setdefault(event.choice, []).append(event.event)
        outputs = sorted(by_choice.items())
        choices = [self._choice(index, output) for index, output in outputs]
        finishes = [finish_of(output) for _, output in outputs]
        return self._head.body(self.KIND, choices) | self._counts(finishes)

    def _content(self, event: OutputEvent) -> Json | str:
        """An event as the content of a chunk; empty if it has none."""
        raise NotImplementedError

    def _logprobs(self, choice: int, entries: Sequence[TokenLogprob]) -> Json | None:
        raise NotImplementedError

    def _choice(self, index: int, events: Sequence[OutputEvent]) -> Json:
        """A whole choice, from all of its events."""
        raise NotImplementedError

    def _encode(self, choice: int, event: OutputEvent) -> list[Json]:
        content = self._content(event)
        logprobs = self._logprobs(choice, event.logprobs)
        if not isinstance(event, Finish):
            return [self._chunk(choice, content, logprobs)] if content or logprobs else []
        self._finishes[choice] = event
        chunks = [self._chunk(choice, content, logprobs, finish_reason(event))]
        if len(self._finishes) == self._total:
            counts = self._counts([self._finishes[i] for i in range(self._total)])
            if self._include_usage:
                chunks.append(self._head.body(self.CHUNK_KIND, []) | {"usage": counts["usage"]})
            del counts["usage"]
            chunks[-1] |= counts
        return chunks

    def _chunk(
        self,
        choice: int,
        content: Json | str,
        logprobs: Json | None = None,
        reason: str | None = None,
    ) -> Json:
        entry: Json = {"index": choice, self.CONTENT: content}
        entry |= {"logprobs": logprobs, "finish_reason": reason}
        chunk = self._head.body(self.CHUNK_KIND, [entry])
        if self._include_usage:
            chunk["usage"] = None
        return chunk

    def _counts(self, finishes: Sequence[Finish]) -> Json:
        return {
            "usage": usage(finishes, self._prompts),
            "timings": timings(finishes, self._prompts),
            **warnings(self._head.warnings),
            **receipt(finishes),
        }


def finish_of(events: Iterable[OutputEvent]) -> Finish:
    """The last event of a finished choice."""
    return next(event for event in events if isinstance(event, Finish))


def all_logprobs(events: Iterable[OutputEvent]) -> list[TokenLogprob]:
    entries: list[TokenLogprob] = []
    for event in events:
        entries += event.logprobs
    return entries


def finish_reason(finish: Finish) -> str:
    """The finish reason in OpenAI's terms.

    A choice that ends within a call, by a stop string, is no tool call.
    """
    if finish.tool_calls and finish.stop is None and finish.reason is FinishReason.STOP:
        return "tool_calls"
    return _REASONS[finish.reason]
