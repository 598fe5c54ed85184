"""Answers of `omlx serve` whose process is killed while a client reads: the client asks the next
process for the rest, and what it has then is what an undisturbed client gets."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI
from openai.types.responses import ResponseCompletedEvent, ResponseIncompleteEvent
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from tests.cli.killed import serving
from tests.server import running
from tests.server.journal.streams import PATHS, Event, alike, body_of, numbered, said
from tests.server.journal.test_answers import EVERY
from tests.server.running import DRAFT, HYBRID, TARGET

KEY = {"Idempotency-Key": "one"}
EACH = 10
ASKED: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": "Any."}]}


def read(client: httpx.Client, dialect: str, body: Event, events: list[Event]) -> httpx.Response:
    """Ask for the events behind those that a client has."""
    if not events:
        request = client.build_request("POST", PATHS[dialect], json=body, headers=KEY)
    elif dialect == "responses":
        one = f"{PATHS[dialect]}/{events[0]['response']['id']}"
        query = f"stream=true&starting_after={len(events) - 1}"
        request = client.build_request("GET", f"{one}?{query}")
    else:
        last = KEY | {"Last-Event-ID": str(len(events) - 1)}
        request = client.build_request("POST", PATHS[dialect], json=body, headers=last)
    return client.send(request, stream=True)


def read_on(
    client: httpx.Client,
    dialect: str,
    body: Event,
    events: list[Event],
    disturb: Callable[[], bool],
) -> bool:
    """Call `disturb` once `EACH` more events have come, and read what was on its way, too. Return
    what `disturb` does: whether the server lives."""
    response, first, lives = read(client, dialect, body, events), len(events), True
    try:
        for number, event in numbered(response):
            assert number == len(events)
            events.append(event)
            if len(events) == first + EACH:
                lives = disturb()
    except httpx.TransportError:
        assert not lives
    finally:
        response.close()
    return lives


def as_client_reads(dialect: str, events: list[Event]) -> Any:
    """What the official client makes of a stream of these events."""
    frames = [f"data: {json.dumps(event)}\n\n" for event in events]
    if dialect == "chat":
        frames.append("data: [DONE]\n\n")
    else:
        frames = [
            f"event: {event['type']}\n{frame}" for event, frame in zip(events, frames, strict=True)
        ]
    answer = Response("".join(frames), media_type="text/event-stream")
    route = Route("/{path:path}", lambda request: answer, methods=["POST"])
    with running.serving(Starlette(routes=[route])) as url:
        if dialect == "messages":
            with (
                Anthropic(base_url=url, api_key="none") as claude,
                claude.messages.stream(max_tokens=9, **ASKED) as stream,
            ):
                return stream.get_final_message().content
        with OpenAI(base_url=url, api_key="none") as openai:
            if dialect == "responses":
                with openai.responses.stream(model="any", input="Any.") as followed:
                    *_, last = followed
                assert isinstance(last, ResponseCompletedEvent | ResponseIncompleteEvent)
                return last.response.output
            chunks = openai.chat.completions.create(stream=True, **ASKED)
            return said(dialect, [chunk.model_dump(exclude_unset=True) for chunk in chunks])


def kill_and_continue(
    home: Path,
    dialect: str,
    kind: str,
    n: int,
    model: str,
    speculation: str,
    kills: int,
    pause_s: float = 0.5,
) -> int:
    """Return how often the server was killed."""
    draft = ("--draft-model", DRAFT) if model == TARGET else ()
    body = body_of(dialect, kind, model=model, speculation=speculation, seed=5)
    body |= {"max_output_tokens" if dialect == "responses" else "max_tokens": 200}
    body |= {"n": n} if n > 1 else {}
    events: list[Event] = []
    undisturbed: list[Event] = []
    killed = 0
    while not undisturbed:
        with serving(home, model, signal.SIGKILL, *draft) as (client, pid):
            disturb = partial(kill, pid) if killed < kills else partial(pause, pid, pause_s)
            if read_on(client, dialect, body, events, disturb):
                undisturbed = [e for _, e in numbered(client.post(PATHS[dialect], json=body))]
            else:
                killed += 1
    assert killed
    assert said(dialect, alike(events)) == said(dialect, alike(undisturbed))
    assert as_client_reads(dialect, alike(events)) == as_client_reads(dialect, alike(undisturbed))
    return killed


def kill(process: int) -> bool:
    os.kill(process, signal.SIGKILL)
    return False


def pause(process: int, seconds: float) -> bool:
    """Stop a process, as a laptop that sleeps does."""
    os.kill(process, signal.SIGSTOP)
    threading.Timer(seconds, os.kill, (process, signal.SIGCONT)).start()
    return True


def test_an_answer_outlives_its_process(tmp_path: Path) -> None:
    """The second process sleeps for a while, too."""
    kill_and_continue(tmp_path, "chat", "tools", 2, HYBRID, "ngram", kills=1)


@pytest.mark.slow
def test_an_answer_outlives_a_minute_of_sleep(tmp_path: Path) -> None:
    kill_and_continue(tmp_path, "messages", "text", 1, TARGET, "auto", kills=1, pause_s=60)


@pytest.mark.slow
@pytest.mark.parametrize(("dialect", "kind", "n", "model", "speculation"), EVERY)
def test_every_answer_outlives_all_its_processes(
    tmp_path: Path,
    dialect: str,
    kind: str,
    n: int,
    model: str,
    speculation: str,
    record_property: Callable[[str, object], None],
) -> None:
    killed = kill_and_continue(tmp_path, dialect, kind, n, model, speculation, kills=99)
    record_property("kills", killed)
