"""What follows a tool call surely is in the prefix cache before the tool's result comes."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mlx_lm.tokenizer_utils import load as load_tokenizer

from omlx.engine.types import Finished, FinishReason
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import State
from omlx.records import RequestStats
from omlx.server.beginnings.next_turn import NextTurns, Turn
from omlx.server.beginnings.prewarmer import BackgroundPrefill
from omlx.server.dialects.anthropic.encoder import tool_id
from omlx.server.dialects.anthropic.request import MessageRequest
from omlx.server.request.generation_request import GenerationRequest
from omlx.server.request.stream import GenerationStream
from omlx.server.request.tooling import AnswerMessage
from omlx.settings.schema import Settings
from omlx.text.events import (
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from omlx.text.tools import ToolUse
from tests.lanes import few
from tests.server.running import HYBRID, PATIENCE_S, TARGET, Running, omlx

CHAT = "/v1/chat/completions"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "read_the_forecast_of_a_place",
        "description": "Reads the forecast.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"enum": ["the town of many hills", "the sea shore"]}},
            "required": ["place"],
            "additionalProperties": False,
        },
    },
}
RESULT = "Rain."


def body(*behind: dict[str, Any], choice: str = "required") -> dict[str, Any]:
    messages = [{"role": "user", "content": "What is the weather like?"}, *behind]
    return {
        "messages": messages,
        "tools": [TOOL],
        "tool_choice": choice,
        "max_tokens": 400,
        "chat_template_kwargs": {"enable_thinking": True},
        "seed": 4,
        "temperature": 0.7,
    }


def post(running: Running, sent: dict[str, Any]) -> dict[str, Any]:
    answer = running.http.post(CHAT, json=sent)
    assert answer.status_code == 200, answer.text
    record: dict[str, Any] = answer.json()
    return record


def two_turns(model: str, prewarm: str) -> tuple[int, dict[str, Any]]:
    """Return the tokens left to compute after a tool's result, and the answer.

    Without the reasoning before the call, which clients do not return, the prompt is another one.
    """
    with omlx(Settings(prewarm=prewarm, speculation="off"), default=model) as running:
        (choice,) = post(running, body())["choices"]
        assert choice["finish_reason"] == "tool_calls"
        if prewarm != "off":
            until = time.monotonic() + PATIENCE_S
            while not [id for id in running.engine.ended if id.startswith("prewarm")]:
                assert time.monotonic() < until
                time.sleep(0.02)  # the end of a background task
        (call,) = choice["message"]["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": RESULT}
        said = {key: choice["message"][key] for key in ("role", "content", "tool_calls")}
        turn = body(said, result, choice="auto") | {"max_tokens": 8}
        record = post(running, turn)
        usage = record["usage"]
        left = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        return left, record["choices"][0]["message"]


@pytest.mark.parametrize("model", few((HYBRID, TARGET), HYBRID))
def test_a_result_is_all_that_is_left_to_compute(model: str) -> None:
    plain, answer = two_turns(model, "off")
    left, same = two_turns(model, "always")
    assert same == answer
    assert left <= 0.7 * plain, (left, plain)


@pytest.mark.slow
def test_it_is_computed_beside_another_answer_with_the_last_priority() -> None:
    with omlx(Settings(prewarm="always", speculation="off"), default=HYBRID) as running:
        post(running, {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 1})
        other = {
            "messages": [{"role": "user", "content": "Go on."}],
            "stream": True,
            "logit_bias": running.endless(),
        }
        with running.http.stream("POST", CHAT, json=other) as stream:
            lines = stream.iter_lines()
            next(lines)
            post(running, body())
            running.engine.wait_until_over("prewarm")
            ended = [end for id, (_, end) in running.engine.ended.items() if "prewarm" in id]
            assert isinstance(ended[0], Finished)
            assert ended[0].reason is FinishReason.LENGTH
            assert running.engine.request_counts(HYBRID).decoding == 1


def test_a_model_that_is_unloaded_is_not_loaded_again_for_a_next_turn() -> None:
    with (
        omlx(Settings(prewarm="always", speculation="off"), default=HYBRID) as running,
        ThreadPoolExecutor(2) as threads,
    ):
        post(running, {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 1})
        address = f"/v1/models/{HYBRID}"
        held, before = Event(), len(running.engine.submitted)
        running.engine.call(lambda: held.wait(PATIENCE_S))
        try:
            answer = threads.submit(post, running, body())
            running.engine.wait_for_submission(before)
            unloaded = threads.submit(running.http.post, f"{address}/unload")
            until = time.monotonic() + PATIENCE_S
            while running.pool.status(HYBRID).state is not State.DRAINING:
                assert time.monotonic() < until
                time.sleep(0.02)  # a request on its way
        finally:
            held.set()
        assert answer.result()["choices"][0]["finish_reason"] == "tool_calls"
        assert unloaded.result().json()["state"] == "unloaded"
        assert running.pool.status(HYBRID).state is State.UNLOADED
        assert len(running.engine.submitted) == before + 1


def answered(*, reasoning: str = "") -> AnswerMessage:
    answer = AnswerMessage()
    for event in (
        ReasoningDelta(reasoning),
        TextDelta("I "),
        TextDelta("look."),
        ToolCallStart(0, "call_1", "look"),
        ToolCallArguments(0, '{"at": '),
        ToolCallArguments(0, '"hills"}'),
        ToolCallEnd(0),
        Finish(FinishReason.STOP, RequestStats(1, 0, 1, 0, 0, 0, 0, {}, None)),  # type: ignore[arg-type]
    ):
        answer.add(event)
    return answer


def test_the_message_is_as_clients_send_it_back() -> None:
    call = {"name": "look", "arguments": {"at": "hills"}}
    assert answered().message() == {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
    }
    (returned,) = answered().message(tool_id)["tool_calls"]
    assert returned["id"] == "toolu_1"
    body = MessageRequest(messages=[{"role": "user", "content": "a"}], max_tokens=4)
    assert body.generation_request().call_id("call_1") == "toolu_1"


@pytest.mark.parametrize(
    ("reasoning", "earlier", "count"),
    [
        ("", [], 1),
        ("hm", [], 2),  # whether the client returns reasoning is unknown
        ("hm", [{"role": "assistant", "content": "a", "reasoning_content": "b"}], 1),
        ("hm", [{"role": "assistant", "content": "a"}], 1),
    ],
)
def test_reasoning_comes_back_as_before(
    reasoning: str, earlier: list[dict[str, Any]], count: int
) -> None:
    tokenizer = load_tokenizer(BUNDLED / TARGET)
    messages = [{"role": "user", "content": "a"}, *earlier, {"role": "user", "content": "b"}]
    request = GenerationRequest(messages=messages, tools=ToolUse((TOOL,)))
    prompts = Turn(request, answered(reasoning=reasoning)).fixed_parts(tokenizer, 4096)
    texts = [str(tokenizer.decode(list(tokens))) for tokens in prompts]
    assert len(texts) == count
    assert all(text.rstrip().endswith("<tool_response>") for text in texts)
    returned = "reasoning_content" in (earlier or [{}])[0]
    assert ("hm" in texts[-1]) == (bool(reasoning) and (returned or not earlier))


@pytest.mark.parametrize(
    ("behind", "cancels"),
    [
        ([{"role": "assistant", "content": "a"}, {"role": "user", "content": "c"}], True),
        ([], False),
    ],
)
def test_the_next_turn_ends_its_preparation(behind: list[dict[str, Any]], cancels: bool) -> None:
    messages = [{"role": "user", "content": "b"}]
    turns = NextTurns(cast(BackgroundPrefill, Any), cast(Pool, Any), Settings)
    stream = cast(GenerationStream, SimpleNamespace(served=SimpleNamespace(id="m")))

    async def never() -> None:
        await asyncio.Event().wait()

    async def come() -> None:
        task = turns._start(never(), Turn(GenerationRequest(messages=messages), answered()))
        turns.watch(stream, GenerationRequest(messages=[*messages, *behind]), "agent/1")
        await asyncio.wait([task], timeout=0)
        assert bool(task.cancelling()) == cancels
        turns.shut_down()

    asyncio.run(come())
