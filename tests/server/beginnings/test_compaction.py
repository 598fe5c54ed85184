"""Compactions are computed ahead of the program's request, in the shape of the last one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from omlx.server.beginnings.compaction import (
    MAX_PROGRAMS,
    Compactions,
    asks_to_compact,
    shape_of,
)
from omlx.server.request.generation_request import GenerationRequest
from omlx.settings.schema import Settings
from omlx.text.tools import ToolUse
from tests.server.running import HYBRID, PATIENCE_S, TARGET, Running, omlx

TOOLS = ToolUse(({"type": "function", "function": {"name": "look", "description": "Looks."}},))
ASKS = (
    "Your task is to create a detailed summary of the conversation so far.",
    "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary.",
    "Provide a detailed prompt for continuing our conversation above.",
)


def say(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


SYSTEM, HELLO, DONE = say("system", "Be brief."), say("user", "Hello."), say("assistant", "Hi.")
ASK = say("user", ASKS[0])


def request(*messages: Mapping[str, Any], tools: ToolUse | None = TOOLS) -> GenerationRequest:
    return GenerationRequest(messages=messages, tools=tools)


@pytest.mark.parametrize("ask", ASKS)
def test_the_messages_of_known_programs_ask(ask: str) -> None:
    assert asks_to_compact(request(SYSTEM, HELLO, DONE, say("user", ask)))
    assert not asks_to_compact(request(SYSTEM, say("user", ask), DONE, HELLO))
    assert not asks_to_compact(request(SYSTEM, HELLO))


@pytest.mark.parametrize("tools", [TOOLS, None])
@pytest.mark.parametrize("system", [SYSTEM, say("system", "You summarise.")])
def test_a_shape_is_learnt_and_used(system: dict[str, Any], tools: ToolUse | None) -> None:
    learnt = Compactions()
    learnt.note("m", "agent", request(SYSTEM, HELLO))
    learnt.note("m", "agent", request(SYSTEM, say("user", "Of a sub-agent.")))
    learnt.note("m", "agent", request(SYSTEM, say("user", "A title?"), tools=None))
    assert learnt.shape("m", "agent") is None
    learnt.note("m", "agent", request(system, HELLO, DONE, ASK, tools=tools))
    shape = learnt.shape("m", "agent")
    assert shape is not None
    assert learnt.shape("m", "other") is learnt.shape("n", "agent") is None
    more = request(say("system", "Be briefer."), say("user", "Other."), DONE)
    expected = say("system", "Be briefer.") if system is SYSTEM else system
    compaction = shape.of(more)
    assert list(compaction.messages) == [expected, *more.messages[1:], ASK]
    assert compaction.tools == tools


def test_the_programs_of_the_last_conversations_are_known() -> None:
    learnt = Compactions()
    for number in range(MAX_PROGRAMS + 1):
        learnt.note("m", f"p{number}", request(SYSTEM, HELLO))
        learnt.note("m", f"p{number}", request(SYSTEM, HELLO, DONE, ASK))
    known = [learnt.shape("m", f"p{number}") is not None for number in range(MAX_PROGRAMS + 1)]
    assert known == [False] + [True] * MAX_PROGRAMS


def test_a_request_about_another_conversation_teaches_nothing() -> None:
    conversation = request(SYSTEM, HELLO, DONE)
    for other in ((SYSTEM, DONE, ASK), (SYSTEM, HELLO, ASK), (SYSTEM, HELLO, DONE)):
        assert shape_of(conversation, request(*other)) is None
    fewer = replace(conversation, messages=(HELLO,))
    assert shape_of(fewer, request(HELLO, ASK)) is not None


LONG = "Rain falls on the hills, and the river carries stones to the sea. " * 24


def ask(running: Running, *messages: Mapping[str, Any], tools: bool = True) -> dict[str, Any]:
    body: dict[str, Any] = {
        "messages": messages,
        "max_tokens": 12,
        "seed": 4,
        "temperature": 0.7,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    if tools:
        body["tools"] = TOOLS.functions
    answer = running.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    record: dict[str, Any] = answer.json()
    return record


def compaction_of(
    running: Running, texts: Sequence[str], waits: bool, tools: bool
) -> tuple[dict[str, Any], str]:
    """Hold a conversation that fills the context, compact it; return usage and summary."""
    system, messages = say("system", LONG[:600]), list[dict[str, Any]]()
    for text in texts:
        messages.append(say("user", text))
        record = ask(running, system, *messages)
        messages.append(say("assistant", record["choices"][0]["message"]["content"] or ""))
    if waits:
        until = time.monotonic() + PATIENCE_S
        while not [id for id in running.engine.ended if id.startswith("prewarm")]:
            assert time.monotonic() < until, record["usage"]
            time.sleep(0.02)  # the end of a background task
    record = ask(running, system, *messages, ASK, tools=tools)
    return record["usage"], record["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("model", "tools"),
    [(HYBRID, False), pytest.param(TARGET, False, marks=pytest.mark.slow)],
)
def test_the_next_compaction_begins_at_its_first_token(model: str, tools: bool) -> None:
    """Without tools, its prompt parts from the conversation's at the very beginning."""
    texts = [LONG, f"And then? {LONG}"]
    settings = Settings(prewarm="always", speculation="off", max_context=2_000)
    with omlx(settings, default=model) as running:
        compaction_of(running, ["Hello.", "And?"], waits=False, tools=tools)
        usage, summary = compaction_of(running, texts, waits=True, tools=tools)
        left = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        assert left <= usage["prompt_tokens"] / 10
        assert usage["context_left"] == 2_000 - usage["total_tokens"]
    with omlx(settings.model_copy(update={"prewarm": "off"}), default=model) as running:
        usage, cold = compaction_of(running, texts, waits=False, tools=tools)
        assert usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"] / 2
        assert cold == summary
