"""Fields of other servers that have no effect here: answered, with a warning that names them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.server.dialects.anthropic import request as message_request
from omlx.server.dialects.ollama import request as ollama
from omlx.server.dialects.openai import chat_request as chat
from omlx.server.dialects.openai import completions_request as completions
from omlx.server.dialects.openai import responses_request as responses
from omlx.server.request.fields import WITHOUT_EFFECT
from tests.server.dialects import user
from tests.server.running import TARGET, Running

DOCS = Path(__file__).parents[2] / "docs/api.md"
ASKED: list[Any] = user("hello")
USED: dict[str, Any] = {
    "web_search_options": {},
    "mcp_servers": [{"type": "url", "url": "https://a", "name": "a"}],
    "mirostat": 2,
}
NEUTRAL: dict[str, Any] = {
    "service_tier": "auto",
    "mcp_servers": [],
    "mirostat": 0,
    "web_search_options": None,
    "metadata": {"user_id": "a"},
    "unheard_of": 1,
}
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASKED},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": ASKED},
    "/api/chat": {"messages": ASKED, "stream": False, "options": {"num_predict": 2}},
}
LIMITS = {"/v1/responses": "max_output_tokens"}


@pytest.mark.parametrize("path", PATHS)
def test_fields_without_effect_are_named(server: Running, path: str) -> None:
    limit = {LIMITS.get(path, "max_tokens"): 2}
    used = dict(USED)
    if path == "/v1/messages":
        del used["mcp_servers"]  # has an effect there
    for fields, named in ((used, sorted(used)), (NEUTRAL, [])):
        body = {"model": TARGET, **limit, **PATHS[path], **fields}
        if path == "/v1/responses":
            body |= {"metadata": {}}
        answer = httpx.post(server.url + path, json=body, timeout=60)
        assert answer.status_code == 200
        warnings = answer.json().get("warnings", [])
        found = [each for each in warnings if each["code"] == "request.without_effect"]
        names = [name for each in found for name in each["params"]["fields"].split(", ")]
        assert sorted(names) == named


def test_verbosity_of_responses_is_nested() -> None:
    body = json.dumps({"input": "a", "text": {"verbosity": "low"}}).encode()
    (warning,) = responses.ResponseRequest.parse(body).without_effect()
    assert warning.params == {"fields": "verbosity", "count": 1}


def test_the_documentation_lists_every_field() -> None:
    table = DOCS.read_text(encoding="utf-8")
    assert [name for name in WITHOUT_EFFECT if f"`{name}`" not in table] == []


def test_no_field_is_refused_or_used_as_well() -> None:
    bodies = (
        (chat.ChatRequest, chat.UNSUPPORTED),
        (completions.CompletionRequest, completions.UNSUPPORTED),
        (message_request.MessageRequest, message_request.UNSUPPORTED),
        (ollama.OllamaChatRequest, ollama.UNSUPPORTED),
    )
    for body, unsupported in bodies:
        assert not WITHOUT_EFFECT.keys() & unsupported.keys()
        used = WITHOUT_EFFECT.keys() & body.model_fields.keys()
        assert used <= {"thinking", "cache_control", "truncate", "mcp_servers"}  # of one endpoint
