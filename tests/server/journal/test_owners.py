"""Responses belong to the API key that made them: to any other key, their ids are unknown ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.journal.streams import PATHS, copy_files, numbered
from tests.server.running import PATIENCE_S, TARGET, Running
from tests.server.test_api_keys import MAIN, Keyed, keyed

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
    go_on = threading.Event()  # until then the engine waits, with the model loaded
    speller.engine.call(lambda: go_on.wait(PATIENCE_S))
    try:
        id = clients.maker.post(RESPONSES, json=LONG | {"background": True}).json()["id"]
        for other in clients.others:
            assert other.get(f"{RESPONSES}/{id}").status_code == 404
            assert other.get(f"{RESPONSES}/{id}?stream=true").status_code == 404
            assert other.post(f"{RESPONSES}/{id}/cancel").status_code == 404
            assert other.delete(f"{RESPONSES}/{id}").status_code == 404
        assert clients.maker.get(f"{RESPONSES}/{id}").json()["status"] == "in_progress"
        assert clients.maker.post(f"{RESPONSES}/{id}/cancel").json()["status"] == "cancelled"
    finally:
        go_on.set()


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
