"""Answers continued from what a killed process has recorded: the whole stream is the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import httpx
import pytest

from omlx.settings.schema import Settings
from tests.lanes import few
from tests.server.journal.streams import (
    PATHS,
    Event,
    body_of,
    copy_files,
    journaled,
    numbered,
    said,
)
from tests.server.running import DRAFT, HYBRID, TARGET, Running, omlx

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


@pytest.mark.parametrize(("dialect", "kind", "n", "model", "speculation"), few(SLICE, *SLICE[::2]))
def test_an_interrupted_stream_is_continued(
    drafting: Running, tmp_path: Path, dialect: str, kind: str, n: int, model: str, speculation: str
) -> None:
    body = body_of(dialect, kind, model=model, speculation=speculation, seed=5)
    cut_and_continue(drafting, tmp_path, dialect, body | ({"n": n} if n > 1 else {}), 9)


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
