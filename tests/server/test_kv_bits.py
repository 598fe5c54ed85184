"""KV caches of 8 bits over HTTP: equal answers alone and in company; receipts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from omlx.settings.schema import Settings
from tests.server.dialects import user
from tests.server.running import TARGET, Running, omlx

PROMPTS = ("Count to nine, then count to nine.", "Name a river. Name a river.")


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with omlx(Settings(kv_bits="8")) as server:
        yield server


def answer(running: Running, prompt: str, strategy: str) -> tuple[str, int]:
    """Return text and reasoning of an answer, and the tokens that were drafted."""
    body = {"model": TARGET, "messages": user(prompt), "max_tokens": 20, "seed": 5}
    sampling = {"temperature": 0.7, "speculation": strategy, "num_draft_tokens": 3}
    reply = running.http.post("/v1/chat/completions", json=body | sampling)
    assert reply.status_code == 200, reply.text
    record = reply.json()
    message = record["choices"][0]["message"]
    text = (message.get("reasoning_content") or "") + (message["content"] or "")
    return text, record["timings"].get("draft_n", 0)


def test_answers_are_the_same_alone_in_company_and_with_drafts(running: Running) -> None:
    alone = [answer(running, prompt, "off")[0] for prompt in PROMPTS]
    assert running.http.get(f"/v1/models/{TARGET}").json()["kv_cache"]["bits"] == 8
    with ThreadPoolExecutor(2) as threads:
        together = list(threads.map(lambda prompt: answer(running, prompt, "ngram"), PROMPTS))
    assert [text for text, _ in together] == alone
    assert sum(drafted for _, drafted in together) > 0


def test_a_receipt_names_the_bits(running: Running) -> None:
    body = {"model": TARGET, "messages": user(PROMPTS[0]), "max_tokens": 4, "receipt": True}
    reply = running.http.post("/v1/chat/completions", json=body).json()
    assert reply["receipt"]["kv_bits"] == "8"
