"""The prefix cache over real HTTP: shown, probed, cleared; not without a session."""

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
    record: dict[str, Any] = answer.json()
    return record


def part(client: httpx.Client, model: str) -> str:
    answer = client.get(f"/admin/parts/prefixes/{model}")
    assert answer.status_code == 200, answer.text
    return answer.text


def test_a_cached_prompt_is_found_until_the_cache_is_cleared(server: Administered) -> None:
    with server.browser() as client:
        ask(client, TARGET)
        record = probe(client, TARGET)
        assert record["model"] == TARGET
        assert record["cached_tokens"] == record["prompt_tokens"] - 1
        assert probe(client, TARGET, "Something else.")["cached_tokens"] < record["cached_tokens"]
        assert 'value="0"' not in part(client, TARGET)
        assert client.delete(path(TARGET)).status_code == 204
        assert probe(client, TARGET)["cached_tokens"] == 0
        assert 'value="0"' in part(client, TARGET)


def test_recurrent_states_are_shown_for_models_that_have_them(server: Administered) -> None:
    with server.browser() as client:
        ask(client, HYBRID)
        assert "Recurrent states" in part(client, HYBRID)
        ask(client, TARGET)
        assert "Recurrent states" not in part(client, TARGET)


def test_a_model_that_is_not_in_memory_has_no_cache(server: Administered) -> None:
    with server.browser() as client:
        record = probe(client, DRAFT)
        assert record["prompt_tokens"] > 0
        assert record["cached_tokens"] is None
        assert client.delete(path(DRAFT)).status_code == 204
        assert "not loaded" in part(client, DRAFT)


@pytest.mark.parametrize(
    ("limit", "reason"), [(1000, "Raise --prefix-bytes"), (0, "its memory limit is 0")]
)
def test_a_cache_that_is_off_has_a_reason(tmp_path: Path, limit: int, reason: str) -> None:
    with administered(tmp_path, prefix_bytes=limit) as tight, tight.browser() as client:
        ask(client, HYBRID)
        assert reason in part(client, HYBRID)


@pytest.mark.parametrize(
    "body", [{}, {"prompt": ""}, {"prompt": 3}, {"prompt": "a", "model": DRAFT}]
)
def test_an_invalid_prompt_is_refused_with_its_field(
    server: Administered, body: dict[str, Any]
) -> None:
    with server.browser() as client:
        answer = client.post(path(TARGET, "/probe"), json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] in ("prompt", "model")


def test_an_unknown_model_is_not_found(server: Administered) -> None:
    with server.browser() as client:
        assert client.delete(path("omlx-demo/none")).status_code == 404
        assert (
            client.post(path("omlx-demo/none", "/probe"), json={"prompt": "Hi"}).status_code == 404
        )


def test_nothing_is_open_without_a_session(server: Administered) -> None:
    with server.browser() as client, server.browser(logged_in=False) as anonymous:
        ask(client, TARGET)
        assert anonymous.delete(path(TARGET)).status_code == 401
        assert anonymous.post(path(TARGET, "/probe"), json={"prompt": PROMPT}).status_code == 401
        assert probe(client, TARGET)["cached_tokens"] > 0
