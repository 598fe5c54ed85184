"""Priority, guesses, time limits, cancelling by id and progress, over HTTP and as functions."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from omlx.engine.types import PrefillProgress, PromptForecast, Request
from omlx.server.dialects.anthropic.request import MessageRequest
from omlx.server.dialects.ollama.request import OllamaChatRequest
from omlx.server.dialects.openai.chat_request import ChatRequest
from omlx.server.dialects.openai.completions_request import CompletionRequest
from omlx.server.dialects.openai.responses_request import ResponseRequest
from omlx.server.request.activity import Activity
from omlx.server.request.generation_request import (
    BACKGROUND,
    URGENT,
    GenerationRequest,
    guess,
    priority_of,
)
from omlx.server.request.usage import Progress, Reading
from omlx.settings.schema import Settings
from omlx.telemetry.metrics import Gauges, Metrics
from omlx.text.tools import ToolUse
from tests.server.dialects import user
from tests.server.running import TARGET, Running, omlx

CHAT = "/v1/chat/completions"
ASKED = user("hello")
LONG = user("a river, a hill, a road, " * 100)


@pytest.fixture(scope="module")
def alone() -> Iterator[Running]:
    """A server with one row."""
    settings = Settings(max_concurrent_requests=1, prefill_chunk=64, max_context=4096)
    with omlx(settings, keep_alive_s=0.2) as running:
        yield running


def generation(kind: type, **fields: Any) -> GenerationRequest:
    body = {"model": "m", **fields}
    if kind is MessageRequest:
        body |= {"max_tokens": 5}
    read = kind.parse(json.dumps(body).encode())
    if kind is ResponseRequest:
        return read.generation_request(read.conversation([]))
    return read.generation_request()


DIALECTS = {
    ChatRequest: {"messages": ASKED},
    CompletionRequest: {"prompt": "a"},
    ResponseRequest: {"input": "a"},
    MessageRequest: {"messages": ASKED},
    OllamaChatRequest: {"messages": ASKED},
}


@pytest.mark.parametrize("kind", DIALECTS, ids=lambda kind: kind.__name__)
def test_every_dialect_has_the_fields(kind: type) -> None:
    read = generation(kind, **DIALECTS[kind], priority=3, timeout=2.5)
    assert (read.priority, read.timeout_s) == (3, 2.5)
    for tier, priority in (("flex", BACKGROUND), ("priority", URGENT), ("default", 0)):
        assert generation(kind, **DIALECTS[kind], service_tier=tier).priority == priority
    assert generation(kind, **DIALECTS[kind], service_tier="auto").priority is None
    unknown = generation(kind, **DIALECTS[kind], service_tier="warp")
    assert [warning.code for warning in unknown.warnings] == ["request.tier"]


def chat(text: str, system: str = "", tools: ToolUse | None = None) -> GenerationRequest:
    messages = [{"role": "system", "content": system}] if system else []
    return GenerationRequest([*messages, {"role": "user", "content": text}], tools=tools)


@pytest.mark.parametrize(
    ("kind", "request_"),
    [
        ("title", chat("hi", "You are a title generator. You output ONLY a thread title.")),
        ("title", chat("fix it", "Generate a concise, sentence-case title (3-7 words) of this.")),
        ("title", chat("### Task:\nGenerate a concise, 3-5 word title with an emoji.")),
        ("title", chat("### Task:\nGenerate 1-3 broad tags categorizing the themes.")),
        ("title", chat("### Task:\nSuggest 3-5 relevant follow-up questions.")),
        ("title", chat("Provide a concise, 5-word-or-less title for the conversation.")),
        ("suggestion", chat("[SUGGESTION MODE: what the user might type next]")),
        ("recap", chat("The user stepped away and is coming back. Recap in under 40 words.")),
        ("subagent", chat("find it", "You are an agent for Claude Code, a CLI.")),
        ("subagent", chat("find it", "You are a file search specialist for Claude Code.")),
        (None, chat("Write a poem with a nice title", "You are a helpful assistant.")),
        (None, chat("Explain the title of Moby Dick.")),
        (None, chat("hello", "You are Claude Code, a CLI. Be brief.")),
        (None, chat("go", "Generate a title page.", ToolUse(({"name": "f"},)))),
        (None, GenerationRequest(prompts=("Generate a title for this conversation",))),
    ],
)
def test_background_requests_are_guessed_from_their_shape(
    kind: str | None, request_: GenerationRequest
) -> None:
    assert guess(request_) == (kind and f"priority.guess.{kind}")


def test_a_header_names_a_sub_agent_and_fields_override_guesses() -> None:
    assert guess(chat("a"), "collab_spawn") == "priority.guess.subagent"
    assert guess(chat("a"), "compact") is None
    title = chat("a", "You are a title generator.")
    priority, reason = priority_of(title)
    assert priority == BACKGROUND
    assert reason is not None
    assert reason.message.startswith("In the background")
    told = GenerationRequest(title.messages, priority=0)
    assert priority_of(told) == (0, None)


class Stream:
    """A chat that is streamed in a thread."""

    def __init__(self, server: Running, **fields: Any) -> None:
        self.frames: list[str] = []
        self.begun, self.grown, self.ended = (threading.Event() for _ in range(3))
        self._url = server.url + CHAT
        body = {"model": TARGET, "messages": ASKED, "stream": True, "seed": 3, **fields}
        self._thread = threading.Thread(target=self._run, args=(body,))
        self._thread.start()

    def _run(self, body: dict[str, Any]) -> None:
        with httpx.stream("POST", self._url, json=body, timeout=120) as answer:
            for line in answer.iter_lines():
                if line:
                    self.frames.append(line)
                    self.grown.set()
                if '"content":"' in line:
                    self.begun.set()
        for event in (self.begun, self.grown, self.ended):
            event.set()

    def join(self) -> Stream:
        self._thread.join()
        return self

    @property
    def payloads(self) -> list[dict[str, Any]]:
        data = [line[6:] for line in self.frames if line.startswith("data: {")]
        return [json.loads(line) for line in data]

    @property
    def text(self) -> str:
        choices = [payload["choices"] for payload in self.payloads if payload.get("choices")]
        return "".join(choice[0]["delta"].get("content") or "" for choice in choices)

    @property
    def timings(self) -> dict[str, Any]:
        return next(p["timings"] for p in reversed(self.payloads) if "timings" in p)


BIASED = {"ignore_eos": True, "temperature": 0.8}


def test_a_background_answer_gives_its_row_away_and_is_the_same(alone: Running) -> None:
    long = {"max_tokens": 120, "priority": BACKGROUND, **BIASED}
    undisturbed = Stream(alone, **long).join()
    disturbed = Stream(alone, **long)
    disturbed.begun.wait()
    typed = Stream(alone, messages=user("now"), max_tokens=4, **BIASED).join()
    assert not disturbed.ended.is_set()
    assert typed.timings["predicted_n"] == 4
    disturbed.join()
    assert disturbed.text == undisturbed.text
    assert disturbed.timings["predicted_n"] == 120
    assert disturbed.timings["displaced"] >= 1
    assert "displaced" not in typed.timings


def test_requests_are_listed_with_priority_and_guess_and_cancelled(alone: Running) -> None:
    title = [{"role": "system", "content": "You are a title generator."}, *ASKED]
    stream = Stream(alone, messages=title, max_tokens=2000, **BIASED)
    stream.begun.wait()
    id = stream.payloads[0]["id"]
    (listed,) = (one for one in alone.http.get("/v1/requests").json()["data"] if one["id"] == id)
    assert (listed["priority"], listed["guess"]["code"]) == (BACKGROUND, "priority.guess.title")
    assert listed["model"] == TARGET
    cancelled = alone.http.post(f"/v1/requests/{listed['id']}/cancel")
    assert cancelled.json() == {"id": listed["id"], "object": "request", "cancelled": True}
    stream.join()
    assert stream.payloads[-1]["error"]["code"] == "request.cancelled"
    gone = alone.http.post(f"/v1/requests/{listed['id']}/cancel")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "request.gone")


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_a_request_ends_at_its_time_limit(alone: Running, path: str) -> None:
    body = {"model": TARGET, "messages": ASKED, "max_tokens": 3000, "timeout": 0.3}
    body |= BIASED if path == CHAT else {"temperature": 0.8}
    holder = Stream(alone, max_tokens=3000, priority=URGENT, **BIASED)
    holder.begun.wait()
    answer = alone.http.post(path, json=body)
    alone.http.post(f"/v1/requests/{holder.payloads[0]['id']}/cancel")
    holder.join()
    assert answer.status_code == 504
    assert answer.headers["x-should-retry"] == "false"
    error = answer.json()["error"]
    assert (error["code"], error["params"]) == ("request.timeout", {"seconds": 0.3})
    assert error["type"] == ("server_error" if path == CHAT else "timeout_error")


@pytest.mark.parametrize(("tier", "used"), [("flex", "flex"), ("auto", "default")])
def test_an_answer_names_its_service_tier(alone: Running, tier: str, used: str) -> None:
    body = {"model": TARGET, "messages": ASKED, "max_tokens": 1, "service_tier": tier}
    assert alone.http.post(CHAT, json=body).json()["service_tier"] == used
    body = {"model": TARGET, "input": "a", "max_output_tokens": 16, "service_tier": tier}
    assert alone.http.post("/v1/responses", json=body).json()["service_tier"] == used


@pytest.mark.parametrize("timeout", [0, -1, "x", 1e9])
def test_a_wrong_time_limit_is_refused_by_name(alone: Running, timeout: object) -> None:
    answer = alone.http.post(CHAT, json={"messages": ASKED, "timeout": timeout})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "timeout"


def test_the_first_event_of_a_long_prompt_has_its_forecast(alone: Running) -> None:
    holder = Stream(alone, max_tokens=3000, priority=URGENT, **BIASED)
    holder.begun.wait()
    stream = Stream(alone, messages=LONG, max_tokens=2)  # which waits for the row
    while len(stream.frames) < 3:
        stream.grown.wait()
        stream.grown.clear()
    alone.http.post(f"/v1/requests/{holder.payloads[0]['id']}/cancel")
    holder.join()
    stream.join()
    progress = stream.payloads[0]["timings"]["prompt_progress"]
    assert set(progress) == {"processed", "total", "share", "seconds_left"}
    assert progress["total"] > 512
    comments = [line for line in stream.frames if line.startswith(": prompt_progress {")]
    assert json.loads(comments[0].removeprefix(": prompt_progress "))["total"] == progress["total"]
    assert ": keep-alive" in stream.frames
    short = Stream(alone, max_tokens=2).join()
    assert "timings" not in short.payloads[0]


def test_the_first_event_of_a_kept_stream_has_the_forecast_too(alone: Running) -> None:
    long = "a river, a wood, a road, " * 120
    body = {"model": TARGET, "input": long, "max_output_tokens": 2, "stream": True}
    key = {"Idempotency-Key": "forecast"}
    with alone.http.stream("POST", "/v1/responses", json=body, headers=key) as answer:
        data = [line[6:] for line in answer.iter_lines() if line.startswith("data: {")]
    first = json.loads(data[0])
    assert first["type"] == "response.created"
    assert first["timings"]["prompt_progress"]["total"] > 512


def test_progress_is_that_of_the_prompt_being_read() -> None:
    """Choices of one prompt wait for the first one."""
    activity = Activity(Metrics(lambda: Gauges(True)))
    for choice in "01":
        activity.submitted("m", Request(id=f"a-{choice}", tokens=(5,) * 600, group="a"))
    activity.observe(PrefillProgress("a-0", 200, 600))
    progress = activity.progress("a")
    assert progress is not None
    assert progress.done == 200


def test_progress_follows_the_forecast_then_the_pace() -> None:
    reading = Reading(PromptForecast(cached=100, first_token_s=9.0))
    assert reading.progress(1000, now=12.0, arrived_at=10.0) == Progress(100, 1000, 7.0)
    reading.note(900, 12.0)
    assert reading.progress(1000, now=12.0, arrived_at=10.0).seconds_left == 1.0
    reading = Reading()
    reading.note(200, 13.0)
    reading.note(400, 15.0)
    assert reading.progress(1000, now=15.0, arrived_at=10.0) == Progress(400, 1000, 6.0)
    assert reading.progress(1000, now=16.0, arrived_at=10.0).seconds_left == 5.0
    comment = Progress(400, 1000, 6.04).comment()
    assert comment.startswith(b": prompt_progress {")
    record = {"processed": 400, "total": 1000, "share": 0.4, "seconds_left": 6.0}
    assert json.loads(comment.removeprefix(b": prompt_progress ")) == record
    assert Reading().progress(1000, now=1.0, arrived_at=0.0) == Progress(0, 1000, None)
