"""The chat encoder, from one list of events to the body and to the chunks."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import pytest

from omlx.engine.types import FinishReason, TokenLogprob
from omlx.errors import Reason
from omlx.records import DrafterStats, Gate, RequestStats
from omlx.server.dialects.openai.choices_encoder import ChatEncoder, Head
from omlx.server.http.body import Json
from omlx.server.request.stream import ChoiceEvent
from omlx.server.request.usage import timings, usage
from omlx.text.events import (
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

HEAD = Head("chatcmpl-1", "org/name", 1700000000)
DRAFTER = DrafterStats(10, 6, 3, [3, 2, 1], {"full": 1, "first_reject": 2}, {"trim": 2}, 4.5, 20.25)
STATS = RequestStats(
    prompt_n=12,
    cached_n=4,
    predicted_n=8,
    queue_ms=1.0,
    prompt_ms=50.0,
    predicted_ms=200.0,
    seed=7,
    drafters={"org/small": DRAFTER},
    speculation=Reason("spec.off.no_draft"),
    strategy="ngram",
    strategy_notes=(Reason("strategy.read_as", {"name": "draftless", "meant": "ngram"}),),
    gates={"ngram": Gate("on")},
    speedup=1.2346,
)
ENTRY = TokenLogprob(65, -0.5, ((65, -0.5), (255, float("-inf"))))


def events(n: int = 1) -> list[ChoiceEvent]:
    found: list[ChoiceEvent] = []
    for choice in range(n):
        output = (
            ReasoningDelta("why"),
            TextDelta("A", (ENTRY,)),
            TextDelta(f"{choice}"),
            Finish(FinishReason.LENGTH, STATS, 3, (ENTRY,)),
        )
        found += [ChoiceEvent(choice, event) for event in output]
    return found


def chat_completion(head: Head, events: list[ChoiceEvent]) -> Json:
    return ChatEncoder(head, 1).body(events)


def test_body() -> None:
    body = chat_completion(HEAD, events(2))
    assert {key: body[key] for key in ("id", "object", "created", "model")} == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "org/name",
    }
    assert body["choices"] == [
        {
            "index": choice,
            "message": {"role": "assistant", "content": f"A{choice}", "reasoning_content": "why"},
            "logprobs": None,
            "finish_reason": "length",
        }
        for choice in range(2)
    ]


def test_usage_counts_the_prompt_once() -> None:
    finish = Finish(FinishReason.STOP, STATS, 3)
    assert usage([finish, finish]) == {
        "prompt_tokens": 12,
        "completion_tokens": 16,
        "total_tokens": 28,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {
            "reasoning_tokens": 6,
            "accepted_prediction_tokens": 12,
            "rejected_prediction_tokens": 8,
        },
    }


def test_timings_have_the_names_of_llama_server() -> None:
    assert timings([Finish(FinishReason.STOP, STATS)]) == {
        "prompt_n": 8,
        "prompt_ms": 50.0,
        "prompt_per_second": 160.0,
        "predicted_n": 8,
        "predicted_ms": 200.0,
        "predicted_per_second": 40.0,
        "cache_n": 4,
        "draft_n": 10,
        "draft_n_accepted": 6,
        "drafters": {
            "org/small": {
                "proposed": 10,
                "accepted": 6,
                "rounds": 3,
                "accepted_at": [3, 2, 1],
                "spans": {"first_reject": 2, "full": 1},
                "repairs": {"trim": 2},
                "draft_ms": 4.5,
                "verify_ms": 20.25,
            }
        },
        "seed": 7,
        "speculation": {
            "code": "spec.off.no_draft",
            "params": {},
            "message": "Draft models are disabled by --no-draft.",
            "strategy": "ngram",
            "notes": [
                {
                    "code": "strategy.read_as",
                    "params": {"name": "draftless", "meant": "ngram"},
                    "message": "'draftless' is interpreted as ngram.",
                }
            ],
            "gates": {"ngram": {"state": "on", "reason": None}},
            "speedup": 1.235,
        },
    }


@pytest.mark.parametrize("include_usage", [False, True])
def test_chunks_say_what_the_body_says(include_usage: bool) -> None:
    chunks = ChatEncoder(HEAD, 2, include_usage=include_usage)
    stream = chunks.start() + chunks.feed(events(2))
    body = chat_completion(HEAD, events(2))
    for choice in range(2):
        own = [
            c["choices"][0] for c in stream if c["choices"] and c["choices"][0]["index"] == choice
        ]
        assert own[0]["delta"] == {"role": "assistant", "content": None}
        text = "".join(each["delta"].get("content") or "" for each in own)
        reasoning = "".join(each["delta"].get("reasoning_content", "") for each in own)
        message = body["choices"][choice]["message"]
        assert (text, reasoning) == (message["content"], message["reasoning_content"])
        assert [each["finish_reason"] for each in own if each["finish_reason"]] == ["length"]
    assert stream[-1]["timings"] == body["timings"]
    assert all("timings" not in chunk for chunk in stream[:-1])
    assert bool(stream[-1]["choices"]) != include_usage
    if include_usage:
        assert stream[-1]["usage"] == body["usage"]
        assert all(chunk["usage"] is None for chunk in stream[:-1])


def test_any_batching_of_the_events_gives_the_same_chunks() -> None:
    whole, single = (ChatEncoder(HEAD, 2, include_usage=True) for _ in range(2))
    one_by_one = list(chain.from_iterable(single.feed([event]) for event in events(2)))
    assert one_by_one == whole.feed(events(2))


def test_logprobs_are_valid_json_and_carry_bytes() -> None:
    head = Head("x", "m", 0, lambda token: bytes([token]))
    content = chat_completion(head, events())["choices"][0]["logprobs"]["content"]
    assert content == 2 * [
        {
            "token": "A",
            "logprob": -0.5,
            "bytes": [65],
            "top_logprobs": [
                {"token": "A", "logprob": -0.5, "bytes": [65]},
                {"token": "\ufffd", "logprob": -9999.0, "bytes": [255]},
            ],
        }
    ]
    json.dumps(content, allow_nan=False)


def test_logprobs_of_a_stream_are_those_of_the_body() -> None:
    head = Head("x", "m", 0, lambda token: bytes([token]))
    chunks: list[Any] = ChatEncoder(head, 1, include_usage=False).feed(events())
    logprobs = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    streamed = list(chain.from_iterable(part["content"] for part in logprobs if part))
    assert streamed == chat_completion(head, events())["choices"][0]["logprobs"]["content"]


def test_tool_calls_have_their_place() -> None:
    calls = [
        ToolCallStart(0, "call_1", "look"),
        ToolCallArguments(0, "{}"),
        ToolCallEnd(0),
        Finish(FinishReason.STOP, STATS, tool_calls=1),
    ]
    call_events = [ChoiceEvent(0, call) for call in calls]
    *chunks, last = ChatEncoder(HEAD, 1).feed(call_events)
    assert [chunk["choices"][0]["delta"]["tool_calls"][0] for chunk in chunks] == [
        {
            "index": 0,
            "id": "call_1",
            "type": "function",
            "function": {"name": "look", "arguments": ""},
        },
        {"index": 0, "function": {"arguments": "{}"}},
    ]
    assert last["choices"][0]["finish_reason"] == "tool_calls"
    (choice,) = chat_completion(HEAD, call_events)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        ],
    }
