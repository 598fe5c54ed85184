"""Requests with a key: joined while they run, repeated afterwards, refused with another body; and
disks that fail."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

from omlx.server.journal.journal import Part, Table
from tests.server.dialects import user
from tests.server.journal.streams import DAY_S, PATHS, copy_files, journaled, numbered
from tests.server.running import PATIENCE_S, TARGET, Running

KEY = {"Idempotency-Key": "one"}
SAYS = {"model": TARGET, "messages": user("word " * 40), "max_tokens": 99}


@pytest.fixture
def client(speller: Running, tmp_path: Path) -> Iterator[httpx.Client]:
    with journaled(speller, tmp_path / "answers") as (client, _):
        yield client


@pytest.fixture
def go_on(speller: Running, client: httpx.Client) -> Iterator[threading.Event]:
    """The engine waits for it, with the model loaded."""
    client.post(PATHS["chat"], json=SAYS | {"max_tokens": 1})
    event = threading.Event()
    speller.engine.call(lambda: event.wait(PATIENCE_S))
    yield event
    event.set()


@pytest.mark.parametrize("dialect", ["chat", "messages"])
def test_a_finished_answer_is_repeated(client: httpx.Client, dialect: str) -> None:
    first, again = (client.post(PATHS[dialect], json=SAYS, headers=KEY) for _ in range(2))
    assert first.headers["x-omlx-answer"] == "new"
    assert again.headers["x-omlx-answer"] == "repeated"
    assert again.headers["content-type"] == first.headers["content-type"]
    assert again.content == first.content
    assert client.post(PATHS[dialect], json=SAYS).json()["id"] != first.json()["id"]


def test_a_key_counts_for_one_path_and_one_body(client: httpx.Client) -> None:
    for path in (PATHS["chat"], PATHS["messages"]):
        assert client.post(path, json=SAYS, headers=KEY).headers["x-omlx-answer"] == "new"
    other = SAYS | {"max_tokens": 3}
    chat = client.post(PATHS["chat"], json=other, headers=KEY)
    assert chat.status_code == 409
    assert chat.json()["error"]["code"] == "answer.other_body"
    messages = client.post(PATHS["messages"], json=other, headers=KEY)
    assert (messages.status_code, messages.json()["type"]) == (409, "error")
    assert messages.json()["error"]["code"] == "answer.other_body"
    long = client.post(PATHS["chat"], json=SAYS, headers={"Idempotency-Key": "x" * 256})
    assert (long.status_code, long.json()["error"]["code"]) == (400, "answer.key")
    gone = {"Idempotency-Key": "new", "Last-Event-ID": "3"}
    unknown = client.post(PATHS["chat"], json=SAYS | {"stream": True}, headers=gone)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "answer.gone")
    wrong = KEY | {"Last-Event-ID": "x"}
    after = client.post(
        PATHS["chat"], json=SAYS | {"stream": True}, headers=wrong | {"Idempotency-Key": "two"}
    )
    assert (after.status_code, after.json()["error"]["param"]) == (400, "Last-Event-ID")


def test_a_second_client_joins(
    speller: Running, client: httpx.Client, go_on: threading.Event
) -> None:
    """One answer is generated; the first client leaves, and the second one has all of it."""
    submitted = len(speller.engine.submitted)
    body = SAYS | {"stream": True}
    with client.stream("POST", PATHS["chat"], json=body, headers=KEY) as first:
        chunks = first.iter_lines()
        threading.Timer(0, go_on.set).start()
        begun = next(chunks)
        with client.stream("POST", PATHS["chat"], json=body, headers=KEY) as second:
            source = second.headers["x-omlx-answer"]
            lines = list(second.iter_lines())
    assert source in ("joined", "repeated")
    assert (lines[0], lines[-2]) == (begun, "data: [DONE]")
    assert len(speller.engine.submitted) == submitted + 1


def test_an_answer_that_its_client_left_waits_for_it(
    speller: Running, client: httpx.Client
) -> None:
    slow = {"max_tokens": 3000, "speculation": "off"}  # it must not end before its client has left
    body = SAYS | {"stream": True, "logit_bias": speller.endless(), **slow}
    events = []
    with client.stream("POST", PATHS["chat"], json=body, headers=KEY) as stream:
        name = speller.engine.submitted[-1].rpartition("-")[0]
        for number, event in numbered(stream):
            events.append(event)
            if number == 4:
                break
    speller.engine.wait_until_ended(name)
    last = KEY | {"Last-Event-ID": "4"}
    with client.stream("POST", PATHS["chat"], json=body, headers=last) as stream:
        assert stream.headers["x-omlx-answer"] == "resumed"
        number, event = next(numbered(stream))
    assert (number, event["id"]) == (5, events[0]["id"])


def test_official_clients_send_keys(speller: Running, tmp_path: Path) -> None:
    with journaled(speller, tmp_path) as (client, _):
        url, asked = str(client.base_url), user("word " * 9)
        fields: Any = {"model": TARGET, "messages": asked, "max_tokens": 20, "extra_headers": KEY}
        with OpenAI(base_url=f"{url}/v1", api_key="none") as openai:
            chats = [openai.chat.completions.create(**fields) for _ in range(2)]
        with Anthropic(base_url=url, api_key="none") as anthropic:
            messages = []
            for _ in range(2):
                with anthropic.messages.stream(**fields) as stream:
                    messages.append(stream.get_final_message())
    assert chats[0] == chats[1]
    assert messages[0] == messages[1]


def test_changed_settings_are_refused(speller: Running, tmp_path: Path) -> None:
    """The same tokens would not follow: here, the record is of another digest."""
    body = SAYS | {"stream": True, "logit_bias": speller.endless(), "max_tokens": 2000}
    with (
        journaled(speller, tmp_path / "a") as (client, _),
        client.stream("POST", PATHS["chat"], json=body, headers=KEY) as stream,
    ):
        next(numbered(stream))
        copy_files(tmp_path / "a", tmp_path / "b")
    with closing(Table(tmp_path / "b", 1 << 20, DAY_S)) as table:
        table._db.execute("update answers set digest = x'00'")
    with journaled(speller, tmp_path / "b") as (client, _):
        answer = client.post(PATHS["chat"], json=body, headers=KEY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "answer.changed")


def test_without_a_disk_answers_have_a_warning(speller: Running, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with journaled(speller, tmp_path / "file") as (client, _):
        answer = client.post(PATHS["chat"], json=SAYS, headers=KEY).json()
        (warning,) = answer["warnings"]
        assert warning["code"] == "answer.off.failed"
        assert "omlx_answers_on_disk" not in client.get("/metrics").text


def remove(table: Table) -> None:
    shutil.rmtree(table.path.parent)


def fill(table: Table) -> None:
    """Nothing more fits in the file, as on a full disk."""
    table._db.execute("pragma max_page_count = 1")


@pytest.mark.parametrize(("fail", "said"), [(remove, "No such file"), (fill, "full")])
def test_a_disk_that_fails_costs_the_record_only(
    speller: Running,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fail: Callable[[Table], None],
    said: str,
) -> None:
    """It fails behind the first tokens."""
    written: list[Part] = []

    def append_and_fail(table: Table, parts: Sequence[Part]) -> set[str]:
        here = append(table, parts)
        if not written:
            fail(table)
        written.extend(parts)
        return here

    append = Table.append
    monkeypatch.setattr(Table, "append", append_and_fail)
    with journaled(speller, tmp_path / "a") as (client, journal):
        messages = user("word " * 200)  # more than fits in a page
        body = SAYS | {"stream": True, "messages": messages, "max_tokens": 300}
        with client.stream("POST", PATHS["chat"], json=body, headers=KEY) as stream:
            events = [event for _, event in numbered(stream)]
        assert events[-1]["choices"][0]["finish_reason"] == "stop"
        assert journal.off is not None
        assert said in journal.off.params["detail"]
        assert "omlx_answers_on_disk" not in client.get("/metrics").text


def test_what_is_on_disk_is_counted(speller: Running, tmp_path: Path) -> None:
    with journaled(speller, tmp_path) as (client, _):
        for _ in range(2):
            client.post(PATHS["chat"], json=SAYS, headers=KEY)
        metrics = client.get("/metrics").text
    assert "omlx_answers_on_disk 1.0" in metrics
    assert 'omlx_answers_returned_to_total{state="repeated"} 1.0' in metrics


def test_answers_of_other_apis_are_no_responses(client: httpx.Client) -> None:
    answer = client.post(PATHS["chat"], json=SAYS, headers=KEY).json()
    assert client.get(f"{PATHS['responses']}/{answer['id']}").status_code == 404
