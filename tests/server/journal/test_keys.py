"""Requests with a key: joined, repeated, refused with another body, by owner; failing disks."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

from omlx.server.journal.journal import AnswerFile, Part
from tests.server.dialects import user
from tests.server.journal.streams import DAY_S, PATHS, copy_files, journaled, numbered
from tests.server.running import TARGET, Running
from tests.server.test_api_keys import MAIN, Keyed, keyed

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
    with speller.engine.held() as event:
        yield event


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
    with closing(AnswerFile(tmp_path / "b", 1 << 20, DAY_S)) as table:
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


def remove(table: AnswerFile) -> None:
    shutil.rmtree(table.path.parent)


def fill(table: AnswerFile) -> None:
    """Nothing more fits in the file, as on a full disk."""
    table._db.execute("pragma max_page_count = 1")


@pytest.mark.parametrize(("fail", "said"), [(remove, "No such file"), (fill, "full")])
def test_a_disk_that_fails_costs_the_record_only(
    speller: Running,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fail: Callable[[AnswerFile], None],
    said: str,
) -> None:
    """It fails behind the first tokens."""
    written: list[Part] = []

    def append_and_fail(table: AnswerFile, parts: Sequence[Part]) -> set[str]:
        here = append(table, parts)
        if not written:
            fail(table)
        written.extend(parts)
        return here

    append = AnswerFile.append
    monkeypatch.setattr(AnswerFile, "append", append_and_fail)
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


RESPONSES = PATHS["responses"]
UNKNOWN = "resp_unknown"
LONG: dict[str, Any] = {"model": TARGET, "input": "word " * 90, "max_output_tokens": 400}
SHORT = LONG | {"input": "word", "max_output_tokens": 4}


@dataclass(frozen=True)
class Clients:
    """Of one key, of another one, and of the server's own."""

    maker: httpx.Client
    others: tuple[httpx.Client, ...]


@pytest.fixture
def site(speller: Running, tmp_path: Path) -> Iterator[Keyed]:
    with keyed(speller, tmp_path) as site:
        yield site


@pytest.fixture
def clients(site: Keyed) -> Iterator[Clients]:
    with (
        site.http(site.file.add("maker")) as maker,
        site.http(site.file.add("other")) as other,
        site.http(MAIN) as main,
    ):
        yield Clients(maker, (other, main))


def answers(client: httpx.Client, response: str, item: str) -> list[tuple[int, str]]:
    """Status and body for each way to reach a response or an item of it, without the ids."""
    one = f"{RESPONSES}/{response}"
    continuing = SHORT | {"previous_response_id": response}
    referring = SHORT | {"input": [{"type": "item_reference", "id": item}]}
    made = (
        client.get(one),
        client.get(f"{one}?stream=true"),
        client.get(f"{one}?stream=true&starting_after=1"),
        client.get(f"{one}?stream=true", headers={"Last-Event-ID": "1"}),
        client.get(f"{one}/input_items"),
        client.post(f"{one}/cancel"),
        client.delete(one),
        client.post(RESPONSES, json=continuing),
        client.post(RESPONSES, json=referring),
    )
    return [(one.status_code, one.text.replace(response, "").replace(item, "")) for one in made]


def first_event(stream: httpx.Response) -> dict[str, Any]:
    event: dict[str, Any] = next(numbered(stream))[1]
    return event


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"background": True, "stream": True}])
def test_to_another_key_a_response_is_unknown(clients: Clients, more: dict[str, Any]) -> None:
    given = clients.maker.post(RESPONSES, json=SHORT | more)
    id = given.text.partition('"id":"')[2].partition('"')[0]
    item = clients.maker.get(f"{RESPONSES}/{id}").json()["output"][0]["id"]
    for other in clients.others:
        seen = answers(other, id, item)
        assert seen == answers(other, UNKNOWN, "msg_unknown")
        assert all(status in (400, 404) for status, _ in seen)
    statuses = [status for status, _ in answers(clients.maker, id, item)]
    assert statuses[0] == statuses[4] == statuses[5] == statuses[6] == 200


def test_an_item_with_an_id_of_the_client_is_the_one_of_its_own_response(clients: Clients) -> None:
    reference = {"type": "item_reference", "id": "mine"}
    asked = ("first", "second")
    for client, text in zip((clients.maker, clients.others[0]), asked, strict=True):
        item = {"type": "message", "id": "mine", "role": "user", "content": text}
        client.post(RESPONSES, json=SHORT | {"input": [item]})
    for client, text in zip((clients.maker, clients.others[0]), asked, strict=True):
        more = client.post(RESPONSES, json=SHORT | {"input": [reference]}).json()
        items = client.get(f"{RESPONSES}/{more['id']}/input_items").json()["data"]
        assert text in str(items)


def test_a_response_in_progress_is_its_makers_alone(speller: Running, clients: Clients) -> None:
    clients.maker.post(RESPONSES, json=SHORT)
    with speller.engine.held():
        id = clients.maker.post(RESPONSES, json=LONG | {"background": True}).json()["id"]
        for other in clients.others:
            assert other.get(f"{RESPONSES}/{id}").status_code == 404
            assert other.get(f"{RESPONSES}/{id}?stream=true").status_code == 404
            assert other.post(f"{RESPONSES}/{id}/cancel").status_code == 404
            assert other.delete(f"{RESPONSES}/{id}").status_code == 404
        assert clients.maker.get(f"{RESPONSES}/{id}").json()["status"] == "in_progress"
        assert clients.maker.post(f"{RESPONSES}/{id}/cancel").json()["status"] == "cancelled"


def test_the_next_process_knows_whose_they_are(speller: Running, tmp_path: Path) -> None:
    """A stored response, one that was cut, and one in the background, of a process that is
    killed."""
    with keyed(speller, tmp_path / "a") as site:
        keys = [site.file.add(name) for name in ("maker", "other")]
        with site.http(keys[0]) as maker:
            ids = [maker.post(RESPONSES, json=SHORT).json()["id"]]
            with (
                maker.stream("POST", RESPONSES, json=LONG | {"stream": True}) as cut,
                maker.stream(
                    "POST", RESPONSES, json=LONG | {"stream": True, "background": True}
                ) as back,
            ):
                ids += [first_event(stream)["response"]["id"] for stream in (cut, back)]
                copy_files(tmp_path / "a", tmp_path / "b")
    with keyed(speller, tmp_path / "b") as site, site.http(keys[0]) as maker:
        for key in (keys[1], MAIN):
            with site.http(key) as other:
                for id in ids:
                    assert other.get(f"{RESPONSES}/{id}").status_code == 404
                    assert other.delete(f"{RESPONSES}/{id}").status_code == 404
        assert [maker.get(f"{RESPONSES}/{id}").json()["id"] for id in ids] == ids
        assert maker.delete(f"{RESPONSES}/{ids[0]}").status_code == 200


def test_a_new_key_of_the_same_name_has_its_responses(site: Keyed) -> None:
    with site.http(site.file.add("maker")) as maker:
        id = maker.post(RESPONSES, json=SHORT).json()["id"]
    site.file.revoke("maker")
    with site.http(site.file.add("maker")) as maker:
        assert maker.get(f"{RESPONSES}/{id}").status_code == 200
