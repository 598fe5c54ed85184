"""The OpenAI chat dialect, outwards: events to a JSON body or to chunks. Pure; no I/O.

A stream is: a chunk with the role for each choice, deltas, a chunk with the finish reason for each choice, and with
`include_usage` a last one without choices. `timings` come in the last chunk, whichever that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from omlx.engine.types import FinishReason, TokenLogprob
from omlx.server.stream import ChoiceEvent
from omlx.server.usage import timings, usage
from omlx.text.events import Finish, OutputEvent, ReasoningDelta, TextDelta, ToolCallDelta

Json = dict[str, Any]

REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.CANCELLED: "stop"}
LOWEST_LOGPROB = -9999.0


@dataclass(frozen=True, slots=True)
class Head:
    """What every body and chunk of one answer repeats. `token_bytes` is None unless logprobs were asked for."""

    id: str
    model: str
    created: int
    token_bytes: Callable[[int], bytes] | None = None

    def body(self, kind: str, choices: Sequence[Json]) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": list(choices)}


class ChatChunks:
    """Chunks of a stream of `n` choices: `start`, then `feed` until the last choice has finished."""

    def __init__(self, head: Head, n: int, *, include_usage: bool) -> None:
        self._head = head
        self._n = n
        self._include_usage = include_usage
        self._finishes: dict[int, Finish] = {}

    def start(self) -> list[Json]:
        return [self._chunk(choice, {"role": "assistant", "content": ""}) for choice in range(self._n)]

    def feed(self, events: Iterable[ChoiceEvent]) -> list[Json]:
        return [chunk for each in events for chunk in self._encode(each.choice, each.event)]

    def _encode(self, choice: int, event: OutputEvent) -> list[Json]:
        logprobs = _logprobs(event.logprobs, self._head.token_bytes)
        if not isinstance(event, Finish):
            return [self._chunk(choice, _delta(event), logprobs)]
        self._finishes[choice] = event
        chunks = [self._chunk(choice, {}, logprobs, REASONS[event.reason])]
        if len(self._finishes) == self._n:
            finishes = [self._finishes[i] for i in range(self._n)]
            if self._include_usage:
                chunks.append(self._head.body("chat.completion.chunk", []) | {"usage": usage(finishes)})
            chunks[-1]["timings"] = timings(finishes)
        return chunks

    def _chunk(self, choice: int, delta: Json, logprobs: Json | None = None, reason: str | None = None) -> Json:
        entry = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        chunk = self._head.body("chat.completion.chunk", [entry])
        if self._include_usage:
            chunk["usage"] = None
        return chunk


def chat_completion(head: Head, events: Sequence[ChoiceEvent]) -> Json:
    """The whole answer as one body, from all events of all its choices."""
    by_choice: dict[int, list[OutputEvent]] = {}
    for each in events:
        by_choice.setdefault(each.choice, []).append(each.event)
    choices = [_choice(head, index, by_choice[index]) for index in sorted(by_choice)]
    finishes = [event for index in sorted(by_choice) for event in by_choice[index] if isinstance(event, Finish)]
    return head.body("chat.completion", choices) | {"usage": usage(finishes), "timings": timings(finishes)}


def _choice(head: Head, index: int, events: Sequence[OutputEvent]) -> Json:
    message: Json = {"role": "assistant", "content": "".join(e.text for e in events if isinstance(e, TextDelta))}
    reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    if reasoning:
        message["reasoning_content"] = reasoning
    logprobs = tuple(entry for event in events for entry in event.logprobs)
    finish = next(event for event in events if isinstance(event, Finish))
    return {
        "index": index,
        "message": message,
        "logprobs": _logprobs(logprobs, head.token_bytes),
        "finish_reason": REASONS[finish.reason],
    }


def _delta(event: TextDelta | ReasoningDelta | ToolCallDelta) -> Json:
    match event:
        case TextDelta(text=text):
            return {"content": text}
        case ReasoningDelta(text=text):
            return {"reasoning_content": text}
        case ToolCallDelta(index=index, id=id, name=name, arguments=arguments):
            call: Json = {"index": index, "function": {"arguments": arguments}}
            if id is not None:
                call |= {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            return {"tool_calls": [call]}


def _logprobs(entries: Sequence[TokenLogprob], token_bytes: Callable[[int], bytes] | None) -> Json | None:
    if token_bytes is None or not entries:
        return None
    content = [
        _token(token_bytes(entry.token), entry.logprob)
        | {"top_logprobs": [_token(token_bytes(token), logprob) for token, logprob in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _token(raw: bytes, logprob: float) -> Json:
    """JSON has no infinity: a banned token has the lowest logprob that clients expect."""
    return {
        "token": raw.decode("utf-8", "replace"),
        "logprob": logprob if logprob > LOWEST_LOGPROB else LOWEST_LOGPROB,
        "bytes": list(raw),
    }
