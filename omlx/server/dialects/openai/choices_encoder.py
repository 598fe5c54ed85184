"""Chat and text completions: answers of several choices, whole or in chunks.

Pure; no I/O. A stream is: chunks of each choice, the last with the finish reason, then with
`include_usage` a chunk without choices. `timings` and `warnings` are in the last chunk.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import ClassVar

from omlx.engine.types import FinishReason, TokenLogprob
from omlx.errors import OmlxError, Reason
from omlx.server.http import errors
from omlx.server.http.transport import Json
from omlx.server.request.dialect import EventEncoder
from omlx.server.request.stream import ChoiceEvent, GenerationStream
from omlx.server.request.tooling import AnswerMessage
from omlx.server.request.usage import finite, logprob_entries, receipt, timings, usage, warnings
from omlx.text.events import (
    Finish,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
)


@dataclass(frozen=True, slots=True)
class Head:
    """Fields of every chunk. `token_bytes`: None without logprobs; `tier`: the service tier."""

    id: str
    model: str
    created: int
    token_bytes: Callable[[int], bytes] | None = None
    warnings: tuple[Reason, ...] = ()
    tier: str | None = None

    @classmethod
    def of(
        cls, stream: GenerationStream, *, logprobs: bool = False, tier: str | None = None
    ) -> Head:
        token_bytes = stream.served.token_bytes if logprobs else None
        return cls(stream.id, stream.model, stream.created, token_bytes, stream.warnings, tier)

    def body(self, kind: str, choices: Sequence[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
            **({} if self.tier is None else {"service_tier": self.tier}),
        }


class ChoicesEncoder(EventEncoder):
    """Encodes `total` choices of `prompts` prompts. Subclasses encode the content of a choice."""

    KIND: ClassVar[str]
    CHUNK_KIND: ClassVar[str]
    CONTENT: ClassVar[str]
    """Field of a chunk's choice that holds the content."""
    PROMPT: ClassVar[str]
    """Field of the request that holds the prompt, for errors."""

    def __init__(self, head: Head, total: int, prompts: int, *, include_usage: bool) -> None:
        self._head = head
        self._total = total
        self._prompts = prompts
        self._include_usage = include_usage
        self._finishes: dict[int, Finish] = {}

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
        """Return an event as the content of a chunk; empty for events without content."""
        raise NotImplementedError

    def _logprobs(self, choice: int, entries: Sequence[TokenLogprob]) -> Json | None:
        raise NotImplementedError

    def _choice(self, index: int, events: Sequence[OutputEvent]) -> Json:
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
    return next(event for event in events if isinstance(event, Finish))


def all_logprobs(events: Iterable[OutputEvent]) -> list[TokenLogprob]:
    entries: list[TokenLogprob] = []
    for event in events:
        entries += event.logprobs
    return entries


def finish_reason(finish: Finish) -> str:
    """Return the finish reason in OpenAI's terms.

    A choice cut within a call by a stop string is no tool call.
    """
    if finish.tool_calls and finish.stop is None and finish.reason is FinishReason.STOP:
        return "tool_calls"
    return "length" if finish.reason is FinishReason.LENGTH else "stop"


class ChatEncoder(ChoicesEncoder):
    """An answer of `n` choices. A stream begins with a role chunk per choice."""

    KIND = "chat.completion"
    CHUNK_KIND = "chat.completion.chunk"
    CONTENT = "delta"
    PROMPT = "messages"

    def __init__(self, head: Head, n: int, *, include_usage: bool = False) -> None:
        super().__init__(head, n, 1, include_usage=include_usage)

    def start(self) -> list[Json]:
        role = {"role": "assistant", "content": None}
        return [self._chunk(choice, role) for choice in range(self._total)]

    def _content(self, event: OutputEvent) -> Json:
        match event:
            case TextDelta(text=text):
                return {"content": text}
            case ReasoningDelta(text=text):
                return {"reasoning_content": text}
            case ToolCallStart(index=index, id=id, name=name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": id, "type": "function", "function": function}
                return {"tool_calls": [call]}
            case ToolCallArguments(index=index, text=text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            case _:
                return {}

    def _logprobs(self, choice: int, entries: Sequence[TokenLogprob]) -> Json | None:
        if self._head.token_bytes is None or not entries:
            return None
        return {"content": logprob_entries(entries, self._head.token_bytes), "refusal": None}

    def _choice(self, index: int, events: Sequence[OutputEvent]) -> Json:
        return {
            "index": index,
            "message": _message(events),
            "logprobs": self._logprobs(index, all_logprobs(events)),
            "finish_reason": finish_reason(finish_of(events)),
        }


def _message(events: Sequence[OutputEvent]) -> Json:
    """Return the whole message; `content` is null if tool calls are the only output."""
    answer, calls = AnswerMessage(), []
    for event in events:
        answer.add(event)
    for index, start in answer.calls.items():
        function = {"name": start.name, "arguments": "".join(answer.arguments[index])}
        calls.append({"id": start.id, "type": "function", "function": function})
    text, reasoning = "".join(answer.text), "".join(answer.reasoning)
    message: Json = {"role": "assistant", "content": text}
    if calls and not text:
        message["content"] = None
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


_Utf8 = codecs.getincrementaldecoder("utf-8")


class CompletionEncoder(ChoicesEncoder):
    """An answer of `n` choices for each prompt.

    `echoes`: text repeated before the choices, by prompt. `first_tokens`: first id of each prompt,
    which has no logprob; empty unless logprobs of an echo are requested.
    """

    KIND = CHUNK_KIND = "text_completion"
    CONTENT = "text"
    PROMPT = "prompt"

    def __init__(
        self,
        head: Head,
        n: int,
        echoes: Sequence[str],
        *,
        first_tokens: Sequence[int] = (),
        include_usage: bool = False,
    ) -> None:
        super().__init__(head, n * len(echoes), len(echoes), include_usage=include_usage)
        self._n = n
        self._echoes = echoes
        self._first_tokens = first_tokens
        self._offsets = [0] * self._total
        self._decoders = [_Utf8("replace") for _ in range(self._total)]
        if not first_tokens:  # logprobs begin after the echo
            self._offsets = [len(self._echo(choice)) for choice in range(self._total)]

    def start(self) -> list[Json]:
        return [
            self._chunk(choice, self._echo(choice), self._logprobs(choice, self._first(choice)))
            for choice in range(self._total)
            if self._echo(choice)
        ]

    def _echo(self, choice: int) -> str:
        return self._echoes[choice // self._n]

    def _content(self, event: OutputEvent) -> str:
        return event.text if isinstance(event, TextDelta) else ""

    def _choice(self, index: int, events: Sequence[OutputEvent]) -> Json:
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
        logprobs = [*self._first(index), *all_logprobs(events)]
        return {
            "index": index,
            "text": self._echo(index) + text,
            "logprobs": self._logprobs(index, logprobs),
            "finish_reason": finish_reason(finish_of(events)),
        }

    def _first(self, choice: int) -> list[TokenLogprob]:
        """Return the prompt's first token, without a logprob, if logprobs of the echo are
        requested.
        """
        if not self._first_tokens:
            return []
        return [TokenLogprob(self._first_tokens[choice // self._n], nan)]

    def _logprobs(self, choice: int, entries: Sequence[TokenLogprob]) -> Json | None:
        """Return logprobs in OpenAI's columns; null for the first token of an echo.

        `text_offset` counts the complete characters of the choice, echo included, before a token.
        """
        token_bytes = self._head.token_bytes
        if token_bytes is None or not entries:
            return None
        tokens = [_shown(token_bytes, entry.token) for entry in entries]
        offsets = []
        for entry in entries:
            offsets.append(self._offsets[choice])
            completed = self._decoders[choice].decode(token_bytes(entry.token))
            self._offsets[choice] += len(completed)
        logprobs: list[float | None] = []
        top: list[Json | None] = []
        for entry in entries:
            known = not isnan(entry.logprob)
            logprobs.append(finite(entry.logprob) if known else None)
            top.append(_top(token_bytes, entry) if known else None)
        return {
            "tokens": tokens,
            "token_logprobs": logprobs,
            "top_logprobs": top,
            "text_offset": offsets,
        }


def _top(token_bytes: Callable[[int], bytes], entry: TokenLogprob) -> Json:
    """Return logprobs by text, best first.

    Tokens with equal text (parts of characters) are represented by the best.
    """
    top: Json = {}
    for id, value in entry.top:
        top.setdefault(_shown(token_bytes, id), finite(value))
    return top


def _shown(token_bytes: Callable[[int], bytes], token: int) -> str:
    return token_bytes(token).decode("utf-8", "replace")
