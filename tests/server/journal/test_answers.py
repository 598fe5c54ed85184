"""Answers continued from a record, and the events that a client has and no record does."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from omlx.server.journal import answers
from omlx.server.journal.answer import Replay
from omlx.server.journal.journal import AnswerFile, Part
from omlx.server.request.dialect import OPENAI, RESPONSES, Wire, named_event
from omlx.settings.schema import Settings
from tests.lanes import few
from tests.server.journal.streams import (
    PATHS,
    Event,
    alike,
    body_of,
    copy_files,
    journaled,
    numbered,
    said,
)
from tests.server.running import DRAFT, HYBRID, TARGET, Running, omlx, serving

KEY = {"Idempotency-Key": "a"}
SLICE = [
    ("chat", "text", 2, TARGET, "auto"),
    ("chat", "schema", 1, HYBRID, "off"),
    ("completions", "text", 2, HYBRID, "auto"),
    ("messages", "tools", 1, HYBRID, "ngram"),
    ("responses", "thinking", 1, TARGET, "draft"),
]
KINDS = ("text", "tools", "schema", "thinking")
STRATEGIES = ("off", "draft", "ngram", "auto")
EVERY = [
    (("chat", "messages", "responses")[at % 3], kind, 1, model, strategy)
    for at, (kind, model, strategy) in enumerate(product(KINDS, (TARGET, HYBRID), STRATEGIES))
    if model == TARGET or strategy != "draft"  # the hybrid has no draft model
] + [("chat", kind, 2, model, "auto") for kind, model in product(KINDS, (TARGET, HYBRID))]


@pytest.fixture(scope="module")
def drafting() -> Iterator[Running]:
    with omlx(Settings(draft_model=DRAFT, max_concurrent_requests=4)) as running:
        yield running


def cut_and_continue(server: Running, folder: Path, dialect: str, body: Event, each: int) -> None:
    """Copy the files at every `each`th event from the second, and continue each copy from there.

    Not later: on a busy machine all tokens may come in one event.
    """
    events, copies = [], []
    with (
        journaled(server, folder / "whole") as (client, _),
        client.stream("POST", PATHS[dialect], json=body, headers=KEY) as stream,
    ):
        assert stream.headers["x-omlx-answer"] == "new"
        for number, event in numbered(stream):
            events.append(event)
            if number % each == 1:
                copies.append(number)
                copy_files(folder / "whole", folder / str(number))
    assert copies
    for number in copies:
        with journaled(server, folder / str(number)) as (client, _):
            rest = continued(client, dialect, body, events, number)
        assert said(dialect, [*events[: number + 1], *rest]) == said(dialect, events)


def continued(
    client: httpx.Client, dialect: str, body: Event, events: list[Event], number: int
) -> list[Event]:
    """What a client gets that has the events up to `number`."""
    if dialect == "responses":
        url = f"{PATHS[dialect]}/{events[0]['response']['id']}?stream=true"
        request = client.build_request("GET", f"{url}&starting_after={number}")
    else:
        last = {"Last-Event-ID": str(number)}
        request = client.build_request("POST", PATHS[dialect], json=body, headers=KEY | last)
    response = client.send(request, stream=True)
    rest = list(numbered(response))
    response.close()
    assert [at for at, _ in rest] == list(range(number + 1, number + 1 + len(rest)))
    return [event for _, event in rest]


@pytest.mark.parametrize(("dialect", "kind", "n", "model", "speculation"), few(SLICE, *SLICE[::3]))
def test_an_interrupted_stream_is_continued(
    drafting: Running, tmp_path: Path, dialect: str, kind: str, n: int, model: str, speculation: str
) -> None:
    body = body_of(dialect, kind, model=model, speculation=speculation, seed=5)
    cut_and_continue(drafting, tmp_path, dialect, body | ({"n": n} if n > 1 else {}), 25)


def test_a_model_that_was_unloaded_between_is_loaded_again(
    drafting: Running, tmp_path: Path
) -> None:
    body = body_of("chat", "text", model=TARGET, seed=5)
    events: list[Event] = []
    with (
        journaled(drafting, tmp_path / "a") as (client, _),
        client.stream("POST", PATHS["chat"], json=body, headers=KEY) as stream,
    ):
        for number, event in numbered(stream):
            events.append(event)
            if number == 1:
                copy_files(tmp_path / "a", tmp_path / "b")
    with journaled(drafting, tmp_path / "b") as (client, _):
        client.post(f"/v1/models/{TARGET}/unload").raise_for_status()
        assert TARGET not in [served.id for served in drafting.pool.loaded]
        rest = continued(client, "chat", body, events, 1)
    assert said("chat", [*events[:2], *rest]) == said("chat", events)


@pytest.mark.slow
@pytest.mark.parametrize(("dialect", "kind", "n", "model", "speculation"), EVERY)
def test_every_interrupted_stream_is_continued(
    drafting: Running, tmp_path: Path, dialect: str, kind: str, n: int, model: str, speculation: str
) -> None:
    body = body_of(dialect, kind, model=model, speculation=speculation)  # the seed is drawn
    cut_and_continue(drafting, tmp_path, dialect, body | ({"n": n} if n > 1 else {}), 10)


CHUNKS: list[dict[str, Any]] = [
    {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
] * 2
EVENTS: list[dict[str, Any]] = [
    {"type": "response.output_text.delta", "delta": text, "item_id": "a", "sequence_number": number}
    for number, text in enumerate("xy")
]


async def silent_midway(request: Request) -> StreamingResponse:
    chat = request.url.path.endswith("chat/completions")
    replay = Replay(OPENAI if chat else Wire(named_event))
    payloads = CHUNKS if chat else EVENTS

    async def frames() -> AsyncIterator[bytes]:
        replay.add(payloads[:1])
        stream = replay.frames(0, idle_s=0.0)
        yield await anext(stream)
        yield await anext(stream)  # silence
        replay.add(payloads[1:])
        replay.finish()
        replay.end()
        async for frame in stream:
            yield frame

    return StreamingResponse(frames(), media_type="text/event-stream")


@pytest.mark.parametrize("path", ["chat", "responses"])
def test_a_silent_stream_with_ids_is_kept_open(path: str) -> None:
    """Once it has an id, the client takes each blank line for an event."""
    app = Starlette(routes=[Route("/{path:path}", silent_midway, methods=["POST"])])
    with serving(app) as url, OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        if path == "chat":
            chunks = client.chat.completions.create(model="m", messages=[], stream=True)
            assert [chunk.id for chunk in chunks] == ["a", "a"]
        else:
            events: Any = client.responses.create(model="m", input="Any.", stream=True)
            assert [event.delta for event in events] == ["x", "y"]


LOST_KEY = {"Idempotency-Key": "one"}


def long_body(speller: Running, dialect: str) -> Event:
    """A stream of some 400 tokens: it has not ended when a client has its first events."""
    speller.http.post(f"/v1/models/{TARGET}/load").raise_for_status()
    body = body_of(dialect, "text", model=TARGET, seed=1, speculation="off")
    if dialect == "responses":
        return body | {"input": "word " * 90, "max_output_tokens": 400}
    return body | {"logit_bias": speller.endless(), "max_tokens": 400}


def returns(client: httpx.Client, dialect: str, body: Event, id: str, last: int) -> httpx.Response:
    """Ask for the events behind number `last`."""
    if dialect == "responses":
        url = f"{PATHS[dialect]}/{id}?stream=true&starting_after={last}"
        return client.get(url)
    return client.post(PATHS[dialect], json=body, headers=LOST_KEY | {"Last-Event-ID": str(last)})


def refused(response: httpx.Response) -> None:
    assert (response.status_code, response.json()["error"]["code"]) == (409, "answer.lost")


def words(dialect: str, events: list[tuple[int, Event]]) -> Any:
    return said(dialect, alike([event for _, event in events]))


def id_of(event: Event) -> str:
    return str(event.get("id") or event["response"]["id"])


def read(client: httpx.Client, dialect: str, body: Event) -> list[tuple[int, Event]]:
    with client.stream("POST", PATHS[dialect], json=body, headers=LOST_KEY) as stream:
        return list(numbered(stream))


@pytest.mark.parametrize("dialect", few(("chat", "responses"), "responses"))
def test_events_that_could_not_be_written(
    speller: Running, tmp_path: Path, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full behind the first tokens, and the process is killed when a client has all."""
    body, written = long_body(speller, dialect), []

    def write_once(table: AnswerFile, parts: Sequence[Part]) -> set[str]:
        if written:
            raise sqlite3.OperationalError("database or disk is full")
        written.extend(parts)
        return append(table, parts)

    append = AnswerFile.append
    monkeypatch.setattr(AnswerFile, "append", write_once)
    with journaled(speller, tmp_path / "a") as (client, _):
        events = read(client, dialect, body)
    monkeypatch.setattr(AnswerFile, "append", append)
    numbers = [number for number, _ in events]
    assert numbers == sorted(set(numbers))
    kept = sum(number < len(numbers) for number in numbers)
    assert 0 < kept < len(numbers)
    with journaled(speller, tmp_path / "a") as (client, _):
        id = id_of(events[0][1])
        refused(returns(client, dialect, body, id, numbers[-1]))
        rest = list(numbered(returns(client, dialect, body, id, kept - 1)))
        stitched = [*events[:kept], *rest]
        assert [number for number, _ in stitched] == list(range(len(stitched)))
        assert words(dialect, stitched) == words(dialect, events)
        refused(returns(client, dialect, body, id, numbers[-1]))  # it has ended here, too


@pytest.mark.parametrize("dialect", few(("chat", "responses"), "responses"))
def test_events_that_a_power_cut_has_taken(
    speller: Running, tmp_path: Path, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client has all, the record only the first tokens; the machine was started since then."""
    body = long_body(speller, dialect)

    def write_and_copy(table: AnswerFile, parts: Sequence[Part]) -> set[str]:
        here = append(table, parts)
        if not (tmp_path / "b").exists():
            copy_files(tmp_path / "a", tmp_path / "b")
        return here

    append = AnswerFile.append
    monkeypatch.setattr(AnswerFile, "append", write_and_copy)
    with journaled(speller, tmp_path / "a") as (client, _):
        events = read(client, dialect, body)
    monkeypatch.setattr(AnswerFile, "append", append)
    monkeypatch.setattr(answers, "booted_at", time.time)
    with journaled(speller, tmp_path / "b") as (client, _):
        id = id_of(events[0][1])
        rest = list(numbered(returns(client, dialect, body, id, 0)))
        assert words(dialect, [events[0], *rest]) == words(dialect, events)
        refused(returns(client, dialect, body, id, events[-1][0]))  # though as many events are here
        assert rest[-1][0] > events[-1][0]
        assert not list(numbered(returns(client, dialect, body, id, rest[-1][0])))


def test_this_process_knows_its_own_events() -> None:
    replay = Replay(RESPONSES)
    replay.add([{"type": "a", "sequence_number": 0}] * 2)
    replay.jump()
    first = replay.next
    replay.add([{"type": "b", "sequence_number": 2}] * 2)
    replay.finish()
    for one in (replay, Replay.of(RESPONSES, replay.content)):
        known = [one.after(number) for number in (-1, 0, 1, first, first + 1)]
        assert known == [0, 1, 2, 3, 4]
        assert [one.after(number) for number in (2, first - 1, first + 2)] == [None] * 3
    assert b'"sequence_number":%d' % first in replay.content
