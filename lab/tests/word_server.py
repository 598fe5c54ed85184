"""A server with OpenAI's chat API whose model writes random words: right, unless overridden.

A token is a word. An answer depends on messages, temperature and seed alone.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Iterator
from itertools import takewhile
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

Json: TypeAlias = dict[str, Any]

VOCABULARY = ("river", "mountain", "stone", "water", "morning", "boat", "bridge", "cloud")
HOT = 1.0
"""The temperature at which streams come as slowly as a model writes, so that requests meet."""


class WordServer:
    models = ("words",)

    def __init__(self) -> None:
        self.running = 0
        self.prompts: list[list[str]] = []

    @property
    def app(self) -> Starlette:
        chat = Route("/v1/chat/completions", self._chat, methods=["POST"])
        return Starlette(routes=[Route("/v1/models", self._models), chat])

    def problem(self, raw: bytes) -> str | None:
        """What is invalid in a request."""
        try:
            body = json.loads(raw)
        except ValueError:
            return "no JSON"
        if not isinstance(body["messages"], list):
            return "messages is no list"
        if isinstance(body.get("temperature"), str):
            return "temperature is no number"
        return None

    def refusal(self, message: str) -> Response:
        return JSONResponse({"error": {"message": message, "type": "invalid_request"}}, 400)

    def depends_on(self, body: Json) -> list[Any]:
        """What the words of an answer depend on."""
        temperature = body.get("temperature", 1)
        return [body["messages"], temperature, body.get("seed") if temperature else None]

    def answer(self, body: Json) -> Json:
        """The fields of a choice."""
        limit = body.get("max_tokens", 16)
        words = random.Random(json.dumps(self.depends_on(body)))
        finish, message = "length", {"content": " ".join(words.choices(VOCABULARY, k=limit))}
        if "tools" in body:
            finish, message = "tool_calls", self.call(body)
        elif "response_format" in body:
            finish, message = "stop", {"content": '{"colour": "green", "bright": true}'}
        for stop in body.get("stop", ()):
            if stop in message["content"]:
                finish, message = "stop", {"content": self.cut(message["content"], stop)}
        return {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}

    def cut(self, content: str, stop: str) -> str:
        return content[: content.index(stop)]

    def call(self, body: Json) -> Json:
        """A message with a tool call."""
        function = {"name": "set_alarm", "arguments": '{"day": "tomorrow", "loud": true}'}
        return {
            "content": None,
            "tool_calls": [{"id": "a", "type": "function", "function": function}],
        }

    def usage(self, body: Json, choice: Json) -> Json | None:
        prompt = json.dumps(body["messages"]).split()
        message = choice["message"]
        completion = len((message["content"] or "a call").split())
        return {
            "prompt_tokens": len(prompt),
            "completion_tokens": completion,
            "total_tokens": len(prompt) + completion,
            "prompt_tokens_details": {"cached_tokens": self.cached(prompt)},
        }

    def cached(self, prompt: list[str]) -> int:
        """How many words of a prompt were the beginning of an earlier one."""
        known = 0
        for other in self.prompts:
            same = takewhile(lambda pair: pair[0] == pair[1], zip(prompt, other, strict=False))
            known = max(known, len(list(same)))
        self.prompts.append(prompt)
        return known

    def chunks(self, body: Json, choice: Json, usage: Json | None) -> Iterator[Json]:
        """An answer as chunks of a stream."""
        message = choice["message"]
        calls = message.get("tool_calls", ())
        deltas: list[Json] = [{"role": "assistant"}]
        deltas += [{"content": piece} for piece in re.split(r"(?= )", message["content"] or "")]
        for index, call in enumerate(calls):
            name = {"name": call["function"]["name"], "arguments": ""}
            deltas.append({"tool_calls": [{"index": index, "id": call["id"], "function": name}]})
            for piece in re.split(r"(?= )", call["function"]["arguments"]):
                deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        for delta in deltas:
            yield _chunk([{"index": 0, "delta": delta, "finish_reason": None}])
        yield _chunk([{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}])
        if body.get("stream_options", {}).get("include_usage"):
            yield _chunk([], usage=usage)

    def events(self, chunks: Iterator[Json]) -> Iterator[str]:
        for chunk in chunks:
            yield f"data: {json.dumps(chunk)}\n\n"
        yield "data: [DONE]\n\n"

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": name} for name in self.models]})

    async def _chat(self, request: Request) -> Response:
        raw = await request.body()
        problem = self.problem(raw)
        if problem is not None:
            return self.refusal(problem)
        body = json.loads(raw)
        choice = self.answer(body)
        usage = self.usage(body, choice)
        if body.get("stream"):
            events = self.events(self.chunks(body, choice, usage))
            pause_s = 0.005 * (body["temperature"] == HOT)
            return StreamingResponse(self._stream(events, pause_s), media_type="text/event-stream")
        return JSONResponse({"id": "1", "choices": [choice], "usage": usage})

    async def _stream(self, events: Iterator[str], pause_s: float) -> AsyncIterator[str]:
        self.running += 1
        try:
            for event in events:
                await asyncio.sleep(pause_s)  # see HOT
                yield event
        finally:
            self.running -= 1


def _chunk(choices: list[Json], **fields: Any) -> Json:
    return {"id": "1", "object": "chat.completion.chunk", "choices": choices, **fields}
