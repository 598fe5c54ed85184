"""Kept prefixes over real HTTP: shown, probed, cleared; and by nobody without a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.admin.running import API, Administered, administered
from tests.server.running import DRAFT, HYBRID, TARGET

PROMPT = "Name three rivers of Europe, and the seas that they flow into."


def path(model: str, action: str = "") -> str:
    return f"{API}/models/{model}/prefixes{action}"


def ask(client: httpx.Client, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4}
    assert client.post("/v1/chat/completions", json=body).status_code == 200


def probe(client: httpx.Client, model: str, prompt: str = PROMPT) -> dict[str, Any]:
    answer = client.post(path(model, "/probe"), json={"prompt": prompt})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def part(client: httpx.Client, model: str) -> str:
    answer = client.get(f"/admin/parts/prefixes/{model}")
    assert answer.status_code == 200, answer.text
    return answer.text


def test_what_was_kept_is_found_until_it_is_cleared(server: Administered) -> None:
    with server.browser() as client:
        ask(client, TARGET)
        found = probe(client, TARGET)
        assert found["model"] == TARGET
        assert found["cached_tokens"] == found["prompt_tokens"] - 1
        assert probe(client, TARGET, "Something else.")["cached_tokens"] < found["cached_tokens"]
        assert 'value="0"' not in part(client, TARGET)
        assert client.delete(path(TARGET)).status_code == 204
        assert probe(client, TARGET)["cached_tokens"] == 0
        assert 'value="0"' in part(client, TARGET)


def test_a_model_with_recurrent_states_tells_of_them(server: Administered) -> None:
    with server.browser() as client:
        ask(client, HYBRID)
        assert "Recurrent states" in part(client, HYBRID)
        ask(client, TARGET)
        assert "Recurrent states" not in part(client, TARGET)


def test_nothing_is_known_of_a_model_that_is_not_in_memory(server: Administered) -> None:
    with server.browser() as client:
        told = probe(client, DRAFT)
        assert told["prompt_tokens"] > 0
        assert told["cached_tokens"] is None
        assert client.delete(path(DRAFT)).status_code == 204
        assert "not loaded" in part(client, DRAFT)


@pytest.mark.parametrize(
    ("limit", "said"), [(1000, "Raise --prefix-bytes"), (0, "its memory limit is 0")]
)
def test_it_is_said_why_nothing_is_kept(tmp_path: Path, limit: int, said: str) -> None:
    with administered(tmp_path, prefix_bytes=limit) as tight, tight.browser() as client:
        ask(client, HYBRID)
        assert said in part(client, HYBRID)


@pytest.mark.parametrize(
    "body", [{}, {"prompt": ""}, {"prompt": 3}, {"prompt": "a", "model": DRAFT}]
)
def test_what_is_no_prompt_is_refused_by_name(server: Administered, body: dict[str, Any]) -> None:
    with server.browser() as client:
        answer = client.post(path(TARGET, "/probe"), json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] in ("prompt", "model")


def test_a_model_that_is_not_here_is_not_found(server: Administered) -> None:
    with server.browser() as client:
        assert client.delete(path("omlx-demo/none")).status_code == 404
        assert (
            client.post(path("omlx-demo/none", "/probe"), json={"prompt": "Hi"}).status_code == 404
        )


def test_nothing_is_open_without_a_session(server: Administered) -> None:
    with server.browser() as client, server.browser(logged_in=False) as stranger:
        ask(client, TARGET)
        assert stranger.delete(path(TARGET)).status_code == 401
        assert stranger.post(path(TARGET, "/probe"), json={"prompt": PROMPT}).status_code == 401
        assert probe(client, TARGET)["cached_tokens"] > 0
