"""Request bodies recorded against real providers: none is refused but for what docs/api.md names.

`make templates` brings them; without them the tests are skipped.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from omlx.errors import BadRequest
from omlx.server.dialects.anthropic.request import MessageRequest
from omlx.server.dialects.openai.chat_request import ChatRequest
from omlx.server.dialects.openai.completions_request import CompletionRequest
from omlx.server.dialects.openai.responses_request import ResponseRequest
from omlx.settings.schema import Settings
from tests.server.running import TARGET, omlx

FILE: Final = Path(__file__).parents[2] / ".cache/recorded/bodies.jsonl"
SLICE: Final = 100
"""One body of so many is sent over HTTP by `make test`, all of them by `make test-full`."""
REFUSED: Final = {"request.media", "request.unsupported"}
"""Codes of what docs/api.md names: audio, and fields that would change the meaning of an answer."""
BY_MODEL: Final = {
    "image.model",  # pictures, for a model without eyes
    *("context_length_exceeded", "engine.prompt_too_long", "text.too_long"),
    "format.invalid",  # `strict` with keywords that cannot be enforced
    "tools.schema",
}
"""Further codes of the bundled model's limits."""


def recorded() -> list[dict[str, Any]]:
    if not FILE.exists():
        reason = "no recorded bodies: `make templates` fetches them"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return list(map(json.loads, FILE.read_text(encoding="utf-8").splitlines()))


def earlier(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a conversation before a body, with the calls that its approvals answer."""
    items = [item for item in body["input"] if isinstance(item, dict)]
    ids = [item["approval_request_id"] for item in items if "approval_request_id" in item]
    calls = [{"id": id, "function": {"name": "a", "arguments": "{}"}} for id in ids]
    called = [{"role": "assistant", "content": "", "tool_calls": calls}] if calls else []
    return [{"role": "user", "content": "a"}, *called]


def read(path: str, body: Mapping[str, Any]) -> None:
    """Read a body as the server does. Raises BadRequest."""
    data = json.dumps(body).encode()
    match path:
        case "/v1/messages" | "/v1/messages/count_tokens":
            MessageRequest.parse(data).generation_request()
        case "/v1/responses":
            response = ResponseRequest.parse(data)
            before = earlier(body) if response.previous_response_id else []
            response.generation_request(response.conversation(before))
        case "/v1/completions":
            CompletionRequest.parse(data).generation_request()
        case _:
            ChatRequest.parse(data).generation_request()


def test_no_body_is_refused_but_for_what_is_documented() -> None:
    refusals: Counter[str] = Counter()
    unexpected = []
    bodies = recorded()
    for each in bodies:
        try:
            read(each["path"], each["body"])
        except BadRequest as error:
            refusals[error.code] += 1
            if error.code not in REFUSED:
                unexpected.append((each["from"], error.code, error.message))
    assert unexpected == []
    assert len(bodies) > 800
    assert sum(refusals.values()) < len(bodies) / 50


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with (
        omlx(Settings(model_map=("*=" + TARGET,))) as running,
        httpx.Client(base_url=running.url, timeout=120) as client,
    ):
        yield client


def sent(http: httpx.Client, bodies: Sequence[dict[str, Any]]) -> list[tuple[str, int, str]]:
    """Send each body for one token, and return what was refused beyond the codes above."""
    unexpected = []
    for each in bodies:
        body = each["body"] | {"model": TARGET, "stream": False}
        if body.pop("previous_response_id", None) is not None:  # of a response that is not here
            continue
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            if name in body:
                body[name] = 1
        body.setdefault("max_output_tokens" if "input" in body else "max_tokens", 1)
        body.pop("thinking", None)  # its budget is below no limit of one token
        answer = http.post(each["path"], json=body)
        code = "" if answer.status_code == 200 else answer.json()["error"].get("code", "")
        if answer.status_code != 200 and code not in REFUSED | BY_MODEL:
            unexpected.append((each["from"], answer.status_code, answer.text[:300]))
    return unexpected


def test_a_slice_is_answered(http: httpx.Client) -> None:
    assert sent(http, recorded()[::SLICE]) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_body_is_answered(http: httpx.Client) -> None:
    assert sent(http, recorded()) == []
