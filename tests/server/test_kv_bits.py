"""KV caches of 8 bits over HTTP: rows in company, status, receipts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from omlx.settings.schema import Settings
from tests.server.dialects import user
from tests.server.running import TARGET, Running, omlx

PROMPTS = ("Count to nine, then count to nine.", "Name a river. Name a river.")


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with omlx(Settings(kv_bits="8")) as server:
        yield server


def test_two_rows_draft_and_the_receipt_names_the_bits(running: Running) -> None:
    """Their tokens are compared by tests/engine/test_company.py, whose passes no clock decides."""

    def answer(prompt: str) -> dict[str, Any]:
        body = {"model": TARGET, "messages": user(prompt), "max_tokens": 12, "receipt": True}
        drafts = {"speculation": "ngram", "num_draft_tokens": 3}
        reply = running.http.post("/v1/chat/completions", json=body | drafts)
        assert reply.status_code == 200, reply.text
        record: dict[str, Any] = reply.json()
        return record

    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(answer, PROMPTS))
    assert all(record["usage"]["completion_tokens"] > 0 for record in answers)
    assert [record["receipt"]["kv_bits"] for record in answers] == ["8", "8"]
    cache = running.http.get(f"/v1/models/{TARGET}").json()["kv_cache"]
    assert (cache["bits"], cache["reason"]) == (8, None)
