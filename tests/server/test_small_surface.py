"""Paths, small endpoints, fields without effect, the OpenAPI document, LM Studio's models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from omlx.server.access import canonical
from omlx.server.dialects.anthropic import request as message_request
from omlx.server.dialects.ollama import request as ollama
from omlx.server.dialects.openai import chat_request as chat
from omlx.server.dialects.openai import completions_request as completions
from omlx.server.dialects.openai import responses_request as responses
from omlx.server.request.fields import WITHOUT_EFFECT
from omlx.settings.schema import Settings
from tests.server.dialects import markup, user
from tests.server.running import DRAFT, SEEING, TARGET, VISION, Running, omlx
from tests.server.spelling import CONTEXT


def test_loaded_and_other_models(server: Running) -> None:
    server.http.post(f"/v1/models/{TARGET}/load")
    server.http.post(f"/v1/models/{DRAFT}/unload")
    listed = server.http.get("/api/v0/models").json()
    models = {model["id"]: model for model in listed["data"]}
    assert listed["object"] == "list"
    assert models[TARGET] == {
        "id": TARGET,
        "object": "model",
        "type": "llm",
        "publisher": "omlx-demo",
        "arch": "",
        "compatibility_type": "mlx",
        "quantization": "",
        "state": "loaded",
        "max_context_length": CONTEXT,
        "loaded_context_length": CONTEXT,
        "capabilities": ["tool_use"],
    }
    assert models[DRAFT]["state"] == "not-loaded"
    assert "loaded_context_length" not in models[DRAFT]
    for name in (TARGET, TARGET.replace("/", "%2F")):
        assert server.http.get(f"/api/v0/models/{name}").json() == models[TARGET]
    missing = server.http.get("/api/v0/models/none")
    assert (missing.status_code, "none" in missing.json()["error"]) == (404, True)


@pytest.mark.needs_extra
def test_a_model_that_sees() -> None:
    with omlx(Settings(), registry=SEEING) as running:
        http = running.http
        assert http.get(f"/api/v0/models/{VISION}").json()["type"] == "vlm"
        assert http.get(f"/api/v0/models/{TARGET}").json()["type"] == "llm"
        shown = http.post("/api/show", json={"model": VISION}).json()
        assert "vision" in shown["capabilities"]


ASKED: list[Any] = user("hello")


def test_the_first_chunk_leaves_the_content_open(spelling: OpenAI) -> None:
    call = markup("look")
    tool: Any = {"type": "function", "function": {"name": "look"}}
    chunks = list(
        spelling.chat.completions.create(
            model=TARGET, messages=user(call), tools=[tool], reasoning_effort="none", stream=True
        )
    )
    first = chunks[0].choices[0].delta
    assert (first.role, first.content) == ("assistant", None)
    assert "content" in first.model_fields_set
    assert all(choice.delta.content is None for chunk in chunks for choice in chunk.choices)


def test_clients_without_v1_in_their_address_are_answered(server: Running) -> None:
    with OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        assert TARGET in [model.id for model in client.models.list()]
        assert client.models.retrieve(TARGET).id == TARGET
        chat = client.chat.completions.create(model=TARGET, messages=ASKED, max_tokens=2)
        assert chat.object == "chat.completion"
        text = client.completions.create(model=TARGET, prompt="a", max_tokens=2)
        assert text.object == "text_completion"
        made = client.responses.create(model=TARGET, input="a", max_output_tokens=2)
        assert client.responses.retrieve(made.id).id == made.id
        with pytest.raises(BadRequestError) as caught:
            client.embeddings.create(model=TARGET, input="a")
        assert caught.value.code == "embedding.undeclared"
        with pytest.raises(BadRequestError) as caught:
            client.completions.create(model=TARGET, prompt="word " * 9000)
        assert caught.value.param == "prompt"


def test_messages_without_v1_are_anthropics(server: Running) -> None:
    body = {"model": TARGET, "max_tokens": 2, "messages": ASKED}
    assert server.http.post("/messages", json=body).json()["type"] == "message"
    assert server.http.post("/messages/count_tokens", json=body).json()["input_tokens"] > 0
    assert server.http.post("/messages", json={}).json()["type"] == "error"
    assert server.http.get("/chatter").status_code == 404
    fields: dict[str, Any] = {"model": TARGET, "max_tokens": 2, "messages": ASKED}
    assert server.claude.messages.create(**fields).type == "message"


@pytest.mark.parametrize(
    "path", ["/v1/models/", "//v1/models", "/v1//models", "/v1/v1/models", "/models/", "//models/"]
)
def test_addresses_with_a_slash_or_a_version_too_many(server: Running, path: str) -> None:
    body = httpx.get(server.url + path).json()
    assert (body["object"], TARGET in [model["id"] for model in body["data"]]) == ("list", True)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/v1/messages/", "/v1/messages"),
        ("/v1/api/tags", "/api/tags"),
        ("//api//chat", "/api/chat"),
        ("/v1/models/org/name", "/v1/models/org/name"),
        ("/models/org%2Fname/", "/v1/models/org%2Fname"),
        ("/v1/models/v1", "/v1/models/v1"),
        ("/", "/"),
        ("/admin/", "/admin/"),
        ("/v1", "/v1"),
        ("/chatter//a", "/chatter//a"),
    ],
)
def test_paths(path: str, meant: str) -> None:
    assert canonical(path) == meant


def test_input_tokens_of_a_response_are_counted(client: OpenAI) -> None:
    made = client.responses.create(
        model=TARGET, input="Hello there.", instructions="Be kind.", max_output_tokens=2
    )
    assert made.usage is not None
    counted = client.responses.input_tokens.count(
        model=TARGET, input="Hello there.", instructions="Be kind."
    )
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == made.usage.input_tokens
    more = client.responses.input_tokens.count(
        model=TARGET, input="And then?", previous_response_id=made.id
    )
    assert more.input_tokens > 5


def test_compaction_is_refused_by_name(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.responses.compact(model=TARGET, input="a")
    assert caught.value.code == "response.no_compaction"


def test_bodies_are_documented_and_names_of_schemas_hold_no_module(server: Running) -> None:
    document = server.http.get("/openapi.json").json()
    assert [name for name in document["components"]["schemas"] if "__" in name] == []
    paths = document["paths"]
    for path, body in (
        ("/v1/chat/completions", "ChatRequest"),
        ("/v1/messages/count_tokens", "MessageRequest"),
        ("/api/chat", "OllamaChatRequest"),
        ("/v1/models/{name}/prefixes/probe", "ChatRequest"),
    ):
        schema = {"schema": {"$ref": f"#/components/schemas/{body}"}}
        content = {"content": {"application/json": schema}, "required": True}
        assert paths[path]["post"]["requestBody"] == content
    assert "requestBody" not in paths["/v1/models/{name}/load"]["post"]
    assert all("head" not in operations for operations in paths.values())


DOCS = Path(__file__).parents[2] / "docs/api.md"
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
