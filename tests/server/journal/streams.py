"""Streams of the three dialects that are cut and continued, and what they say whatever their cuts.

A process that dies leaves its files: a copy of them, made while a stream is read, is what the next
process finds.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx

from omlx.models.hub.downloads import Downloads
from omlx.receipts.kept import AnswerStore
from omlx.server.app import create_app
from omlx.server.journal.journal import Journal
from omlx.server.services import Stores, build_services
from omlx.settings.schema import Settings
from tests.server.dialects import user
from tests.server.running import OFFLINE, PATIENCE_S, Running, serving

DAY_S = 86400.0
SCHEMA = {
    "type": "object",
    "properties": {"words": {"type": "array", "items": {"type": "string"}, "minItems": 40}},
    "required": ["words"],
    "additionalProperties": False,
}
LONG_ARGUMENT = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 200, "maxLength": 300}},
    "required": ["text"],
    "additionalProperties": False,
}
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}
_RANDOM = re.compile("[0-9a-f]{24,}")
_MOMENTS = re.compile(r'"(created|created_at|completed_at)": [\d.]+')
_MERGED = ("content", "reasoning_content", "text")
Event = dict[str, Any]


def body_of(dialect: str, kind: str, **more: Any) -> Event:
    """The body of a stream of some 60 tokens: text, thinking, tools or schema."""
    thinks = kind == "thinking"
    asked = "Count to 30 please."
    body: Event = {"stream": True, "temperature": 0.7, **more}
    if dialect == "responses":
        body |= {"input": asked, "max_output_tokens": 60}
        body |= {} if thinks else {"reasoning": {"effort": "none"}}
        tool: Event = {"type": "function", "name": "say", "parameters": LONG_ARGUMENT}
        format: Event = {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}}
        forced: Any = "required"
    elif dialect == "messages":
        body |= {"messages": user(asked), "max_tokens": 60}
        body |= {"thinking": {"type": "enabled", "budget_tokens": 1024}} if thinks else {}
        tool = {"name": "say", "description": "Says.", "input_schema": LONG_ARGUMENT}
        format = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
        forced = {"type": "any"}
    elif dialect == "completions":
        return body | {"prompt": "One two three four", "max_tokens": 60}
    else:
        body |= {"messages": user(asked), "max_tokens": 60}
        body |= {} if thinks else {"reasoning_effort": "none"}
        tool = {"type": "function", "function": {"name": "say", "parameters": LONG_ARGUMENT}}
        format = {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": SCHEMA},
            }
        }
        forced = "required"
    if kind == "tools":
        body |= {"tools": [tool], "tool_choice": forced}
    if kind == "schema":
        body |= format
    return body


@contextmanager
def journaled(
    server: Running, folder: Path, max_bytes: int = 1 << 26
) -> Iterator[tuple[httpx.Client, Journal]]:
    """An application of its own over the server's engine, with a journal in `folder`."""
    journal = Journal(folder, max_bytes, DAY_S)
    downloads, answers = Downloads(folder, OFFLINE), AnswerStore(folder.parent / "home")
    services = build_services(server.engine, server.pool, Stores(downloads, answers, journal), None)
    with (
        serving(create_app(services, Settings(), keep_alive_s=0.5)) as url,
        httpx.Client(base_url=url, timeout=PATIENCE_S) as client,
    ):
        yield client, journal


def copy_files(folder: Path, copy: Path) -> None:
    """Copy a journal as a process that is killed now would leave it."""
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*-shm", "lock"))


def numbered(response: httpx.Response) -> Iterator[tuple[int, Event]]:
    """The events of a stream with their ids, but for those that only keep it open."""
    assert response.status_code == 200, response.read()
    number = -1
    for line in response.iter_lines():
        if line.startswith("id: "):
            number = int(line.removeprefix("id: "))
        if line.startswith("data: ") and line != "data: [DONE]":
            event = json.loads(line.removeprefix("data: "))
            if number >= 0 or event.get("type") != "ping":
                yield number, event
            number = -1


def alike(events: list[Event]) -> list[Event]:
    """Events without what differs from one request to the next."""
    text = _RANDOM.sub("id", _MOMENTS.sub(r'"\1": 0', json.dumps(events)))
    made: list[Event] = json.loads(text)
    return made


def said(dialect: str, events: list[Event]) -> Any:
    """What a stream says, apart from where its texts are cut, from times and from what drafts and
    caches did."""
    if dialect in ("chat", "completions"):
        return _choices(events)
    merged: list[Event] = []
    for event in map(_without_counts, events):
        if event["type"] == "ping":
            continue
        last = merged[-1] if merged else None
        if last is not None and _place(last) == _place(event) is not None:
            _append(last["delta"] if dialect == "messages" else last, event)
        else:
            merged.append(event)
    return merged


def _choices(events: list[Event]) -> dict[int, list[Any]]:
    """Of each choice: texts by kind, calls, finish reason; under -1 the count of tokens."""
    parts: dict[int, list[tuple[str, str]]] = {}
    tokens = []
    for event in events:
        tokens += [event["usage"]["completion_tokens"]] if event.get("usage") else []
        for choice in event["choices"]:
            own = parts.setdefault(choice["index"], [])
            delta = choice["delta"] if "delta" in choice else {"text": choice["text"]}
            own += [(name, delta[name]) for name in _MERGED if delta.get(name)]
            for call in delta.get("tool_calls", ()):
                own += [("id", call["id"])] if "id" in call else []
                own.append((f"arguments {call['index']}", call["function"]["arguments"]))
            own += [("reason", choice["finish_reason"])] if choice["finish_reason"] else []
    merged = {
        index: [
            (kind, "".join(text for _, text in group))
            for kind, group in groupby(own, key=lambda part: part[0])
        ]
        for index, own in parts.items()
    }
    return {**merged, -1: [("tokens", str(tokens))]}


def _without_counts(event: Event) -> Event:
    event = json.loads(json.dumps(event))
    event.pop("sequence_number", None)
    for holder in (event, event.get("message", {}), event.get("response", {})):
        usage = holder.pop("usage", None) or {}
        holder["output_tokens"] = usage.get("output_tokens")
        holder.pop("timings", None)
    return event


def _place(event: Event) -> Any:
    """Events with the same place are one text in pieces; None: an event that is no text."""
    if event["type"].startswith("response.") and event["type"].endswith(".delta"):
        return event["type"], event["item_id"]
    if event["type"] == "content_block_delta":
        return event["index"], event["delta"]["type"]
    return None


def _append(text: Event, event: Event) -> None:
    """Append a piece to a text, in place."""
    piece = event["delta"] if isinstance(event["delta"], dict) else event
    for name, value in piece.items():
        if name in ("delta", "text", "thinking", "partial_json", "logprobs"):
            text[name] += value
