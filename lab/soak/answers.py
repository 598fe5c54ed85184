"""An answer as the official client reads it, whole or as a stream, and whether two are equal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import jsonschema

from lab.fuzz.near_tie import near_tie
from lab.fuzz.token_requests import SCHEMA
from lab.soak.requests import Json, SoakRequest
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry
from omlx.models.catalog.tokenizer import read_tokenizer, tokenizer_length
from tests.server.running import TARGET

TEXTS: Final = ("content", "reasoning_content")


def joined(chunks: Iterable[Any]) -> Json:
    """Return the response that a stream of chunks adds up to."""
    message: Json = {}
    calls: list[Json] = []
    tokens: list[Json] = []
    usage, finish_reason = None, None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            finish_reason = choice.finish_reason or finish_reason
            delta = choice.delta.model_dump()
            for name in TEXTS:
                message[name] = message.get(name, "") + (delta.get(name) or "")
            for call in delta.get("tool_calls") or ():
                if call["index"] == len(calls):
                    calls.append({"name": call["function"]["name"], "arguments": ""})
                calls[-1]["arguments"] += call["function"]["arguments"] or ""
            if choice.logprobs is not None:
                tokens += [token.model_dump() for token in choice.logprobs.content or ()]
    return _response(message, calls, tokens, finish_reason, usage)


def whole(completion: Any) -> Json:
    """Return the response of an answer that was not streamed, in the same form."""
    (choice,) = completion.choices
    message = choice.message.model_dump()
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    tokens = [token.model_dump() for token in choice.logprobs.content or ()]
    return _response(message, calls, tokens, choice.finish_reason, completion.usage)


def _response(
    message: Json, calls: list[Json], tokens: list[Json], finish_reason: str | None, usage: Any
) -> Json:
    said = {name: message.get(name) or "" for name in TEXTS}
    said["calls"] = [{name: call[name] for name in ("name", "arguments")} for call in calls]
    choice = {
        "index": 0,
        "message": said,
        "finish_reason": finish_reason,
        "logprobs": {"content": tokens},
    }
    return {"choices": [choice], "usage": usage.model_dump() if usage else {}}


def fault(request: SoakRequest, response: Json) -> str | None:
    """Return what is wrong with an answer by itself, or None."""
    (choice,) = response["choices"]
    if choice["finish_reason"] is None or not response["usage"]:
        return "the answer has no end"
    if choice["finish_reason"] == "length":
        return None
    said = choice["message"]
    texts = [call["arguments"] for call in said["calls"]]
    if request.kind == "schema":
        texts.append(said["content"])
    elif request.body.get("tool_choice") == "required" and not texts:
        return "a required call is missing"
    for text in texts:
        try:
            jsonschema.validate(json.loads(text), SCHEMA)
        except (ValueError, jsonschema.ValidationError) as error:
            return f"{text!r} is not in its schema: {error}"
    return None


def compare(request: SoakRequest, first: Json, second: Json) -> str:
    """Return "equal", "near-tie" (rounding decided a token) or "different"."""
    if _said(first) == _said(second):
        return "equal"
    if near_tie(request.body, first, second, *_tokens()):
        return "near-tie"
    return "different"


def _said(response: Json) -> tuple[Json, str]:
    (choice,) = response["choices"]
    return choice["message"], choice["finish_reason"]


@cache
def _tokens() -> tuple[dict[str, list[int]], int]:
    """Token ids of the bundled tokenizer by text, and how many there are."""
    tokenizer = read_tokenizer(ModelEntry(TARGET, BUNDLED / TARGET, "bundled"))
    width = tokenizer_length(tokenizer)
    ids: dict[str, list[int]] = {}
    for token in range(width):
        ids.setdefault(tokenizer.decode([token]), []).append(token)
    return ids, width
