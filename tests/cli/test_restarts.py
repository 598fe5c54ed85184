"""What the next process of `omlx serve` continues: answers of a killed one, as an undisturbed
client gets them; prefixes on disk; beginnings that return.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
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

from omlx.models.catalog.discovery import BUNDLED
from tests.cli.serving import ended_by
from tests.server import running
from tests.server.journal.streams import PATHS, Event, alike, body_of, numbered, said
from tests.server.journal.test_answers import EVERY
from tests.server.running import DRAFT, HYBRID, PATIENCE_S, TARGET
from tests.storage import homes

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
        with ended_by(signal.SIGKILL, home, model, *draft) as (client, pid):
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
            ended_by(signal.SIGKILL, tmp_path, model, *draft, *rows) as (client, pid),
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
    with ended_by(signal.SIGTERM, tmp_path, model, *draft) as (client, _):
        for reader in readers:
            reader.check(client)
    sys.stdout.write(f"{len(readers)} answers, {sum(reader.kills for reader in readers)} kills\n")


SYSTEM = "You edit small programs with care, and say what you changed. " * 60


def ask(client: httpx.Client, model: str, text: str) -> dict[str, Any]:
    """Ask behind the same long system prompt. Return cached tokens, prompt tokens and text."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    body = {"model": model, "messages": messages, "max_tokens": 24, "temperature": 0.8, "seed": 3}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    record = answer.json()
    usage = record["usage"]
    return {
        "cached": usage["prompt_tokens_details"]["cached_tokens"],
        "prompt": usage["prompt_tokens"],
        "text": record["choices"][0]["message"]["content"],
    }


def disk(client: httpx.Client, model: str) -> dict[str, Any]:
    record: dict[str, Any] = client.get(f"/v1/models/{model}").json()["prefixes"]["disk"]
    return record


def wait_until_written(client: httpx.Client, model: str, tokens: int) -> None:
    """Wait until blocks of so many tokens are on disk."""
    until = time.monotonic() + PATIENCE_S
    while disk(client, model)["pieces"] < tokens // 64:
        assert time.monotonic() < until, disk(client, model)
        time.sleep(0.05)  # the disk writes when the model is idle


@pytest.mark.parametrize(
    ("model", "end"),
    [
        pytest.param(TARGET, signal.SIGKILL, id="killed", marks=pytest.mark.slow),
        pytest.param(HYBRID, signal.SIGTERM, id="ended", marks=pytest.mark.slow),
    ],
)
def test_the_next_process_reads_a_long_prompt_from_disk(
    tmp_path: Path, model: str, end: signal.Signals
) -> None:
    room = ("--prefix-disk", "100MB")  # by default that of a disk with 10 GiB free
    with ended_by(end, tmp_path, model, *room) as (client, _):
        first = ask(client, model, "Name a river.")
        assert first["cached"] == 0
        if end is signal.SIGKILL:
            wait_until_written(client, model, first["prompt"])
    with ended_by(end, tmp_path, model, *room) as (client, _):
        again = ask(client, model, "Name a river.")
        assert again["cached"] > first["prompt"] - 12  # all but the generation prompt
        assert again["text"] == first["text"]
        assert (disk(client, model)["hits"], disk(client, model)["off"]) == (1, None)
        metrics = client.get("/metrics").text
        assert f'omlx_prefix_disk_hits_total{{model="{model}"}} 1.0' in metrics
        assert client.delete(f"/v1/models/{model}/prefixes").status_code == 204
        assert ask(client, model, "Name a river.") == first


MODEL = "agent/hybrid"


def wait_until_cached(client: httpx.Client, tokens: int) -> None:
    body = {
        "messages": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": "Anything else."},
        ]
    }
    until = time.monotonic() + PATIENCE_S
    while True:
        probed = client.post(f"/v1/models/{MODEL}/prefixes/probe", json=body).json()
        if (probed["cached_tokens"] or 0) >= tokens:
            return
        assert time.monotonic() < until, probed
        time.sleep(0.2)  # it is computed once the server is idle


@pytest.mark.slow
def test_an_updated_model_is_warm_before_its_first_request(tmp_path: Path) -> None:
    folder = tmp_path / "models" / MODEL
    shutil.copytree(BUNDLED / HYBRID, folder)
    # By default the prefixes of a disk with less than 10 GiB free stay in memory.
    room = ("--prefix-disk", "100MB")
    arguments = ("--prewarm", "always", "--model-dir", str(tmp_path / "models"), *room)
    with ended_by(signal.SIGTERM, tmp_path, MODEL, *arguments) as (client, _):
        first = ask(client, MODEL, "Name a hill.")
        ask(client, MODEL, "Name a river.")
    assert homes.rows(tmp_path / ".omlx", "select * from beginnings")
    assert (tmp_path / ".omlx" / "omlx.sqlite").stat().st_mode & 0o777 == 0o600
    os.utime(folder / "model.safetensors", (1, 1))  # another state of the model
    with ended_by(signal.SIGTERM, tmp_path, MODEL, *arguments) as (client, _):
        wait_until_cached(client, first["prompt"] - 40)
        again = ask(client, MODEL, "Name a hill.")
        assert again["cached"] >= first["prompt"] - 40
        assert again["text"] == first["text"]
        assert client.get(f"/v1/models/{MODEL}").json()["prefixes"]["disk"]["hits"] == 0
