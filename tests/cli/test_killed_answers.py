"""Answers of `omlx serve` whose process is killed while a client reads: the client asks the next
process for the rest, and what it has then is what an undisturbed client gets."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import count
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
from tests.server.running import DRAFT, HYBRID, PATIENCE_S, TARGET

KEY = {"Idempotency-Key": "one"}
EACH = 3
"""Events, of some three tokens each."""
KILLS = 20
ASKED: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": "Any."}]}


def read(
    client: httpx.Client, dialect: str, body: Event, events: list[Event], key: dict[str, str] = KEY
) -> httpx.Response:
    """Ask for the events behind those that a client has."""
    if not events:
        request = client.build_request("POST", PATHS[dialect], json=body, headers=key)
    elif dialect == "responses":
        one = f"{PATHS[dialect]}/{events[0]['response']['id']}"
        query = f"stream=true&starting_after={len(events) - 1}"
        request = client.build_request("GET", f"{one}?{query}")
    else:
        last = key | {"Last-Event-ID": str(len(events) - 1)}
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
) -> None:
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


class Reader:
    """A client of one answer, which asks each process for what it lacks."""

    def __init__(self, number: int, dialect: str, kind: str, n: int, model: str, strategy: str):
        body = body_of(dialect, kind, model=model, speculation=strategy, seed=5)
        body |= {"max_output_tokens" if dialect == "responses" else "max_tokens": 200}
        self.dialect, self.body = dialect, body | ({"n": n} if n > 1 else {})
        self.key = {"Idempotency-Key": str(number)}
        self.events: list[Event] = []
        self.kills = 0
        self.ended = False

    def read_on(self, client: httpx.Client, has_more: threading.Event) -> None:
        """Read until the server ends, or the stream; `has_more` is set behind `EACH` events."""
        first = len(self.events)
        try:
            response = read(client, self.dialect, self.body, self.events, self.key)
            with closing(response):
                for number, event in numbered(response):
                    assert number == len(self.events)
                    self.events.append(event)
                    if len(self.events) == first + EACH:
                        has_more.set()
            self.ended = True
        except httpx.TransportError:
            self.kills += 1
        finally:
            has_more.set()

    def check(self, client: httpx.Client) -> None:
        stream = client.post(PATHS[self.dialect], json=self.body)
        whole, stitched = alike([event for _, event in numbered(stream)]), alike(self.events)
        assert said(self.dialect, stitched) == said(self.dialect, whole), self.body
        assert as_client_reads(self.dialect, stitched) == as_client_reads(self.dialect, whole)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model", [TARGET, HYBRID])
def test_every_answer_outlives_all_its_processes(tmp_path: Path, model: str) -> None:
    """All of a model's at once: a process ends once each of them has some events more, which is at
    about every tenth token."""
    draft = ("--draft-model", DRAFT) if model == TARGET else ()
    rows = ("--max-concurrent-requests", str(len(EVERY)))
    readers = [Reader(at, *case) for at, case in enumerate(EVERY) if case[3] == model]
    for processes in count():
        running = [reader for reader in readers if not reader.ended]
        if not running:
            break
        with (
            serving(tmp_path, model, signal.SIGKILL, *draft, *rows) as (client, pid),
            ThreadPoolExecutor(len(running)) as threads,
        ):
            waits = [(reader, threading.Event()) for reader in running]
            reads = [threads.submit(reader.read_on, client, more) for reader, more in waits]
            for _, more in waits:
                assert more.wait(PATIENCE_S)
            if processes < KILLS:
                os.kill(pid, signal.SIGKILL)
            for each in reads:
                each.result()
    assert all(reader.kills for reader in readers)
    with serving(tmp_path, model, signal.SIGTERM, *draft) as (client, _):
        for reader in readers:
            reader.check(client)
    sys.stdout.write(f"{len(readers)} answers, {sum(reader.kills for reader in readers)} kills\n")
