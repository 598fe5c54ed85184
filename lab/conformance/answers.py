"""Chat requests to a server, and its answers: whole bodies or assembled stream chunks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from lab.conformance.client import Client, Failed, Json, NotSupported

_SHOWN: Final = 24
"""Characters quoted from each text at the first difference."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the chat API: `finish` is None if missing, `usage` is then empty."""

    content: str
    reasoning: str
    calls: tuple[Call, ...]
    finish: str | None
    usage: Json

    @property
    def written(self) -> str:
        """Reasoning, content and calls as one text: equal for equal tokens."""
        calls = [f"{call.name}({call.arguments})" for call in self.calls]
        return "\n".join(filter(None, [self.reasoning, self.content, *calls]))


def check_equal(first: Answer, second: Answer) -> None:
    """Raise Failed unless texts and finish reasons are equal, or if `first` is empty."""
    one, other = first.written, second.written
    if not one:
        raise Failed("an empty answer")
    if one != other:
        place = _common_length(one, other)
        ends = [repr(text[place : place + _SHOWN]) for text in (one, other)]
        raise Failed(f"differs after {place} characters: {ends[0]}, then {ends[1]}")
    if first.finish != second.finish:
        raise Failed(f"finish_reason is {first.finish}, then {second.finish}")


def whole(body: Json) -> Answer:
    """Read a response body. Raises Failed if malformed."""
    try:
        choice = body["choices"][0]
        message = choice["message"]
        calls = []
        for call in message.get("tool_calls") or ():
            function = call["function"]
            calls.append(Call(call["id"], function["name"], function["arguments"]))
        return Answer(
            content=message.get("content") or "",
            reasoning=_reasoning(message),
            calls=tuple(calls),
            finish=choice.get("finish_reason"),
            usage=body.get("usage") or {},
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise Failed(f"an answer of another form: {error!r}") from error


def assembled(chunks: Iterable[Json]) -> Answer:
    """Assemble the chunks of a stream as clients do. Raises Failed for malformed chunks."""
    parts = _Parts()
    for chunk in chunks:
        try:
            parts.add(chunk)
        except (LookupError, TypeError, AttributeError) as error:
            raise Failed(f"a chunk of another form: {error!r}") from error
    if parts.finish is None:
        raise Failed("a stream without finish_reason")
    calls = [Call(**call) for _, call in sorted(parts.calls.items())]
    return Answer(parts.content, parts.reasoning, tuple(calls), parts.finish, parts.usage)


@dataclass(slots=True)
class _Parts:
    """Accumulator of a stream: texts, names and ids of calls are appended delta by delta."""

    ids: set[str] = field(default_factory=set)
    content: str = ""
    reasoning: str = ""
    finish: str | None = None
    usage: Json = field(default_factory=dict)
    calls: dict[int, dict[str, str]] = field(default_factory=dict)

    def add(self, chunk: Json) -> None:
        self.usage = chunk.get("usage") or self.usage
        if not chunk["choices"]:
            return
        if chunk["object"] != "chat.completion.chunk":
            raise Failed(f"a chunk whose object is {chunk['object']!r}")
        self.ids.add(chunk["id"])
        if len(self.ids) > 1:
            raise Failed("a stream with several ids")
        for choice in chunk["choices"]:
            self._add_choice(choice)

    def _add_choice(self, choice: Json) -> None:
        if choice["index"] != 0:
            raise Failed(f"choice {choice['index']} where one was requested")
        delta: Json = choice.get("delta") or {}
        before = len(self.content), len(self.reasoning), len(self.calls)
        self.content += delta.get("content") or ""
        self.reasoning += _reasoning(delta)
        for part in delta.get("tool_calls") or ():
            function = part.get("function") or {}
            call = self.calls.setdefault(part["index"], {"id": "", "name": "", "arguments": ""})
            call["id"] += part.get("id") or ""
            call["name"] += function.get("name") or ""
            call["arguments"] += function.get("arguments") or ""
        after = len(self.content), len(self.reasoning), len(self.calls)
        if self.finish is not None and after != before:
            raise Failed("text after finish_reason")
        self.finish = choice.get("finish_reason") or self.finish


def _reasoning(message: dict[str, Any]) -> str:
    return message.get("reasoning_content") or message.get("reasoning") or ""


def _common_length(one: str, other: str) -> int:
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))


TOKENS: Final = 48
LONG: Final = 512
"""Token limit for requests in which a model may reason first."""

SEED: Final = 7
GREEDY: Final[Json] = {"temperature": 0, "max_tokens": TOKENS}
SAMPLED: Final[Json] = {"temperature": 0.8, "seed": SEED, "max_tokens": TOKENS}
QUESTION: Final = [{"role": "user", "content": "Write five lines about a river and a mountain."}]
SHOWN: Final = 60
"""Characters of an answer quoted in results."""


def ask(client: Client, **fields: Any) -> Answer:
    """Return a whole answer to `QUESTION`, or to other `messages`. Raises as `Client.chat`."""
    return whole(client.chat(**{"messages": QUESTION, **fields}))


def ask_stream(client: Client, **fields: Any) -> Answer:
    """Return the streamed answer to the same request, assembled. Raises as `Client.stream`."""
    return assembled(client.stream(**{"messages": QUESTION, **fields}))


def counts(answer: Answer) -> tuple[int, int, int]:
    """Return prompt, completion and total tokens.

    Raises NotSupported without usage, Failed for anything but positive whole numbers.
    """
    if not answer.usage:
        raise NotSupported("no usage")
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    prompt, completion, total = (_count(answer.usage, name) for name in names)
    return prompt, completion, total


def _count(usage: Json, name: str) -> int:
    count = usage.get(name)
    if not isinstance(count, int) or count <= 0:
        raise Failed(f"usage is {json.dumps(usage)[:SHOWN]}")
    return count
