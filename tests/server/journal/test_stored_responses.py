"""Responses that were stored are there in the next process, and responses in the background
continue by themselves."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.server.dialects.openai.responses_store import StoredImages
from omlx.server.journal.answers import MAX_ATTEMPTS
from omlx.server.journal.journal import FILE, AnswerFile, Header
from tests.server.journal.streams import (
    DAY_S,
    PATHS,
    body_of,
    copy_files,
    journaled,
    numbered,
    said,
)
from tests.server.running import PATIENCE_S, TARGET, Running

RESPONSES = PATHS["responses"]
SAYS: dict[str, Any] = {"model": TARGET, "input": "word " * 9, "max_output_tokens": 40}


def finished(client: httpx.Client, id: str) -> dict[str, Any]:
    until = time.monotonic() + PATIENCE_S
    while (response := client.get(f"{RESPONSES}/{id}").json())["status"] == "in_progress":
        assert time.monotonic() < until
        time.sleep(0.05)  # a client that polls
    return dict(response)


def attempts(folder: Path) -> int:
    with closing(sqlite3.connect(folder / FILE)) as db:
        (begun,) = db.execute("select attempts from answers").fetchone()
    return int(begun)


def test_the_next_process_has_them(speller: Running, tmp_path: Path) -> None:
    with journaled(speller, tmp_path) as (client, _):
        first, dropped = (client.post(RESPONSES, json=SAYS).json() for _ in range(2))
        client.delete(f"{RESPONSES}/{dropped['id']}")
        items = client.get(f"{RESPONSES}/{first['id']}/input_items").json()
    with journaled(speller, tmp_path) as (client, _):
        assert client.get(f"{RESPONSES}/{first['id']}").json() == first
        assert client.get(f"{RESPONSES}/{first['id']}/input_items").json() == items
        assert client.get(f"{RESPONSES}/{dropped['id']}").status_code == 404
        more = client.post(RESPONSES, json=SAYS | {"previous_response_id": first["id"]})
        assert more.status_code == 200
        reference = {"type": "item_reference", "id": first["output"][-1]["id"]}
        asked = [reference, {"role": "user", "content": "word"}]
        assert client.post(RESPONSES, json=SAYS | {"input": asked}).status_code == 200


def test_images_are_adopted_once() -> None:
    uri = "data:;base64," + "A" * 300
    before = StoredImages()
    texts, uris = before.hold([[{"image_url": uri}]])
    names = tuple(uris)
    after = StoredImages()
    for _ in range(2):
        assert after.adopt(texts, uris | {"omlx-image:other": "data:"}) == names
    assert after.nbytes == len(uri)
    assert after.restored([{"image_url": names[0]}]) == [{"image_url": uri}]
    assert [after.release(names), after.release(names)] == [[], list(names)]


def test_a_finished_stream_is_streamed_again(speller: Running, tmp_path: Path) -> None:
    with (
        journaled(speller, tmp_path) as (client, _),
        client.stream("POST", RESPONSES, json=SAYS | {"stream": True}) as stream,
    ):
        events = [event for _, event in numbered(stream)]
    one = f"{RESPONSES}/{events[0]['response']['id']}"
    with journaled(speller, tmp_path) as (client, _):
        with client.stream("GET", f"{one}?stream=true&starting_after=2") as stream:
            assert [event for _, event in numbered(stream)] == events[3:]
        with client.stream("GET", f"{one}?stream=true", headers={"Last-Event-ID": "4"}) as stream:
            assert [event for _, event in numbered(stream)] == events[5:]


@pytest.mark.parametrize("streams", [True, False])
def test_the_background_continues(speller: Running, tmp_path: Path, streams: bool) -> None:
    """Both processes end the same response; the second one was never asked to."""
    body = body_of("responses", "text", model=TARGET, seed=5) | SAYS | {"background": True}
    body |= {"input": "word " * 90, "max_output_tokens": 400, "stream": streams}
    with journaled(speller, tmp_path / "a") as (client, _):
        if streams:
            with client.stream("POST", RESPONSES, json=body) as stream:
                id = next(numbered(stream))[1]["response"]["id"]
                copy_files(tmp_path / "a", tmp_path / "b")
        else:
            id = client.post(RESPONSES, json=body).json()["id"]
            copy_files(tmp_path / "a", tmp_path / "b")
        whole = finished(client, id)
    with journaled(speller, tmp_path / "b") as (client, _):
        again = finished(client, id)
        assert again["output"] == whole["output"]
        assert again["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
        if streams:
            with client.stream("GET", f"{RESPONSES}/{id}?stream=true") as stream:
                assert said("responses", [event for _, event in numbered(stream)])


def test_an_interrupted_response_continues_when_it_is_asked_for(
    speller: Running, tmp_path: Path
) -> None:
    body = SAYS | {"stream": True, "input": "word " * 90, "max_output_tokens": 400}
    events = []
    with (
        journaled(speller, tmp_path / "a") as (client, _),
        client.stream("POST", RESPONSES, json=body) as stream,
    ):
        for number, event in numbered(stream):
            events.append(event)
            if number == 4:
                copy_files(tmp_path / "a", tmp_path / "b")
    with journaled(speller, tmp_path / "b") as (client, _):
        response = finished(client, events[0]["response"]["id"])
    assert response["output"] == events[-1]["response"]["output"]


def test_a_response_in_progress_keeps_its_record(speller: Running, tmp_path: Path) -> None:
    """It cannot be deleted, and an attempt to do so takes nothing from it."""
    with journaled(speller, tmp_path) as (client, _):
        client.post(RESPONSES, json=SAYS)
        with speller.engine.held():
            id = client.post(RESPONSES, json=SAYS | {"background": True}).json()["id"]
            assert client.delete(f"{RESPONSES}/{id}").status_code == 404
            assert attempts(tmp_path) == 1
        assert finished(client, id)["status"] != "failed"


def test_a_response_that_cannot_continue_says_why(speller: Running, tmp_path: Path) -> None:
    table = AnswerFile(tmp_path, 1 << 20, DAY_S)
    body = b'{"model": "gone", "input": "a", "background": true}'
    header = Header("resp_1", "", None, b"", b"", "1", 1, background=True)
    table.begin(header, body, time.time())
    table.close()
    with journaled(speller, tmp_path) as (client, _):
        answer = client.get(f"{RESPONSES}/resp_1")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert client.delete(f"{RESPONSES}/resp_1").json()["deleted"] is True
        assert client.get(f"{RESPONSES}/resp_1").json()["error"]["code"] == "response.not_found"


def test_a_response_that_ends_each_process_is_not_begun_for_ever(
    speller: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It counts as begun before its model is loaded: loading may be what ends the process."""
    table = AnswerFile(tmp_path, 1 << 20, DAY_S)
    body = b'{"model": "gone", "input": "a", "background": true}'
    table.begin(Header("resp_1", "", None, b"", b"", "1", 1, background=True), body, time.time())
    table.close()
    for begun in (*range(2, MAX_ATTEMPTS + 1), MAX_ATTEMPTS):
        caplog.clear()
        with journaled(speller, tmp_path):
            until = time.monotonic() + PATIENCE_S
            while not caplog.records:
                assert time.monotonic() < until
                time.sleep(0.01)  # the log is all that says so
        assert attempts(tmp_path) == begun
    reason = vars(caplog.records[-1])["fields"]["reason"]
    assert reason.startswith("Answer 'resp_1' was begun 5 times")
