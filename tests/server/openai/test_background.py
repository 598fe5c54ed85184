"""Responses in the background that are streamed to one client or several."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.server.running import PATIENCE_S, TARGET, Running

LONG: dict[str, Any] = {"model": TARGET, "input": "word " * 300, "background": True}


@pytest.fixture
def go_on(speller: Running, spelling: OpenAI) -> Iterator[threading.Event]:
    """The engine waits for it, with the model loaded."""
    spelling.responses.create(model=TARGET, input="a", max_output_tokens=1)
    event = threading.Event()
    speller.engine.call(lambda: event.wait(PATIENCE_S))
    yield event
    event.set()


def test_a_background_response_is_streamed(spelling: OpenAI) -> None:
    asked: dict[str, Any] = {"model": TARGET, "input": "Hello there.", "background": True}
    events = list(spelling.responses.create(**asked, stream=True))
    assert events[0].type == "response.created"
    assert events[0].response.background is True
    assert events[-1].type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    stored = spelling.responses.retrieve(events[-1].response.id)
    assert stored.output_text == events[-1].response.output_text
    assert "Hello there." in stored.output_text


def test_another_client_follows_from_any_event(spelling: OpenAI, go_on: threading.Event) -> None:
    with spelling.responses.create(**LONG, stream=True) as stream:
        first = next(iter(stream))
        assert first.type == "response.created"
        name = first.response.id
    # The first client has left; the response continues.
    following = spelling.responses.retrieve(name, stream=True, starting_after=0)
    go_on.set()
    events = list(following)
    assert events[0].sequence_number == 1
    assert events[-1].type == "response.completed"
    assert spelling.responses.retrieve(name).status == events[-1].response.status
    again = list(spelling.responses.retrieve(name, stream=True, starting_after=0))
    assert again == events  # also after its end


def test_texts_say_whether_they_were_drafted(spelling: OpenAI) -> None:
    asked: dict[str, Any] = {"model": TARGET, "input": "word " * 40, "stream": True}
    extra = {"speculation": "ngram", "num_draft_tokens": 4}
    marked = list(spelling.responses.create(**asked, extra_body=extra | {"mark_drafted": True}))
    deltas = [event for event in marked if event.type == "response.output_text.delta"]
    drafted = [event.delta for event in deltas if event.model_dump().get("drafted")]
    timings = marked[-1].response.model_dump()["timings"]
    assert timings["draft_n_accepted"] > 0
    assert 0 < len("".join(drafted)) < len(marked[-1].response.output_text)
    assert "".join(event.delta for event in deltas) == marked[-1].response.output_text
    plain = spelling.responses.create(**asked, extra_body=extra)
    assert not any("drafted" in event.model_dump() for event in plain)


def test_a_background_stream_can_be_cancelled(spelling: OpenAI, go_on: threading.Event) -> None:
    with spelling.responses.create(**LONG, stream=True) as stream:
        events = iter(stream)
        name = next(events).response.id
        assert spelling.responses.cancel(name).status == "cancelled"
        go_on.set()
        last = list(events)[-1]
    assert last.response.status == "cancelled"
    assert spelling.responses.retrieve(name).status == "cancelled"


def test_an_error_is_the_last_event(spelling: OpenAI) -> None:
    events = list(
        spelling.responses.create(model=TARGET, input="word " * 9000, background=True, stream=True)
    )
    assert events[-1].type == "response.failed"
    error = events[-1].response.error
    assert error is not None
    assert error.model_dump()["params"]["limit"] > 0
