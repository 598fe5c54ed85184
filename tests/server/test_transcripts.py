"""Each dialect's output for lists of events, against golden transcripts."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from omlx.errors import EngineError
from omlx.server.dialects.openai.choices_encoder import ChatEncoder
from tests.server.transcripts import CASES, ENCODERS, EVENTS, GOLDEN, TWO, TWO_HEAD, shown


@pytest.mark.parametrize(("dialect", "case"), CASES)
def test_a_transcript_is_as_it_was(dialect: str, case: str) -> None:
    assert (GOLDEN / f"{dialect}.{case}.json").read_text(encoding="utf-8") == shown(dialect, case)


@pytest.mark.parametrize(("dialect", "case"), CASES)
def test_any_batching_of_the_events_gives_the_same_stream(dialect: str, case: str) -> None:
    single, whole = ENCODERS[dialect](), ENCODERS[dialect]()
    assert single.start() == whole.start()
    events = EVENTS[case]
    one_by_one = list(chain.from_iterable(single.feed([event]) for event in events))
    assert one_by_one == whole.feed(events)


@pytest.mark.parametrize("dialect", ENCODERS)
def test_what_failed_is_told_wherever_it_happens(dialect: str) -> None:
    events = EVENTS["calls"]
    for at in range(len(events)):
        encoder = ENCODERS[dialect]()
        encoder.start()
        encoder.feed(events[:at])
        assert "went wrong" in str(encoder.failed(EngineError("engine.step", detail="went wrong")))


@pytest.mark.parametrize("include_usage", [False, True])
def test_chunks_say_what_the_body_says(include_usage: bool) -> None:
    chunks = ChatEncoder(TWO_HEAD, 2, include_usage=include_usage)
    stream = chunks.start() + chunks.feed(TWO)
    body = ENCODERS["chat.two"]().body(TWO)
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


def test_logprobs_of_a_stream_are_those_of_the_body() -> None:
    chunks: list[Any] = ChatEncoder(TWO_HEAD, 2, include_usage=False).feed(TWO)
    choices = [chunk["choices"][0] for chunk in chunks]
    logprobs = [choice["logprobs"] for choice in choices if choice["index"] == 1]
    streamed = list(chain.from_iterable(part["content"] for part in logprobs if part))
    assert streamed == ENCODERS["chat.two"]().body(TWO)["choices"][1]["logprobs"]["content"]
