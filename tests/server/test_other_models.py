"""A model narrower than its tokenizer, whose missing ids are refused; and KV caches of 8 bits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from omlx.models.catalog.discovery import BUNDLED, Registry
from omlx.models.catalog.registry import ModelEntry
from omlx.settings.schema import Settings
from tests.server.dialects import user
from tests.server.running import TARGET, Running, omlx

WIDTH = 2048
"""Rows of the bundled target's embedding; the tokenizer gets one token more."""

EXTRA = "<image_soft_token>"


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("models") / "narrow"
    shutil.copytree(BUNDLED / TARGET, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    assert max(token["id"] for token in tokenizer["added_tokens"]) < WIDTH
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer["added_tokens"].append({"id": WIDTH, "content": EXTRA, "special": True, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    registry = Registry((ModelEntry("narrow", folder, "bundled"),))
    with omlx(registry=registry, default="narrow") as running:
        yield running.http


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": user(text), "max_tokens": 8, **more}


def test_the_status_says_how_many_tokens_the_model_lacks(http: httpx.Client) -> None:
    http.post("/v1/models/narrow/load")
    vocabulary = http.get("/v1/models/narrow").json()["vocabulary"]
    assert vocabulary["size"] == WIDTH
    assert vocabulary["warning"]["code"] == "model.narrow"
    assert vocabulary["warning"]["params"] == {"missing": 1, "size": WIDTH}


def test_a_grammar_that_needs_a_missing_token_is_a_bad_request(http: httpx.Client) -> None:
    silent = {"enable_thinking": False}
    body = chat("1", guided_grammar=f"start: {EXTRA}", chat_template_kwargs=silent)
    refusal = http.post("/v1/chat/completions", json=body)
    assert refusal.status_code == 400, refusal.text
    assert refusal.json()["error"]["code"] == "format.missing_tokens"


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/v1/chat/completions", chat(f"1 {EXTRA}", repetition_penalty=1.3), "engine.token_id"),
        ("/v1/chat/completions", chat("1", logit_bias={WIDTH: 100}), "request.logit_bias"),
        (
            "/v1/chat/completions",
            chat("1", prediction={"type": "content", "content": EXTRA}),
            "engine.token_id",
        ),
        ("/v1/completions", {"prompt": [5, WIDTH, 7]}, "request.token"),
        ("/v1/completions", {"prompt": [WIDTH] * 5, "repetition_penalty": 1.3}, "request.token"),
        ("/v1/completions", {"prompt": f"1 {EXTRA}"}, "engine.token_id"),
    ],
)
def test_an_id_that_the_model_lacks_is_a_bad_request(
    http: httpx.Client, path: str, body: dict[str, Any], code: str
) -> None:
    refusal = http.post(path, json=body)
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (400, code)
    assert str(WIDTH) in refusal.json()["error"]["message"]
    answer = http.post("/v1/chat/completions", json=chat("Hello."))
    assert answer.json()["usage"]["completion_tokens"] > 0


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
