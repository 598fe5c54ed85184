"""The first requests of programs that look for Ollama, and what they read of the answers.

VS Code's Ollama provider and Open WebUI as in their public sources, OpenCode as its documentation
configures it: it speaks OpenAI's API below /v1 of the same address.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.server.dialects import markup, user
from tests.server.running import TARGET, Running
from tests.server.spelling import CONTEXT

LOOK: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
CALL = markup("look")


@pytest.fixture
def http(speller: Running) -> Any:
    with httpx.Client(base_url=speller.url, timeout=60) as http:
        yield http


def names(http: httpx.Client) -> list[str]:
    return [model["model"] for model in http.get("/api/tags").json()["models"]]


def context_of(shown: dict[str, Any]) -> int:
    info = shown["model_info"]
    (length,) = [info[name] for name in info if name.endswith(".context_length")]
    assert info[f"{info['general.architecture']}.context_length"] == length
    return int(length)


def test_vs_code(http: httpx.Client) -> None:
    """Version, tags, show of each model; then OpenAI's chat with the name from the list."""
    for method in ("GET", "HEAD"):
        assert http.request(method, "/").status_code == 200
    version = http.get("/api/version").json()["version"]
    assert [int(part) for part in version.split(".")] >= [0, 6, 4]
    name = f"{TARGET}:latest"
    assert name in names(http)
    shown = http.post("/api/show", json={"model": name}).json()
    assert {"completion", "tools", "thinking"} <= set(shown["capabilities"])
    assert "vision" not in shown["capabilities"]
    assert context_of(shown) == CONTEXT
    assert shown["model_info"]["general.basename"] == "target"
    body = {
        "model": name,
        "messages": [{"role": "system", "content": "Be."}, {"role": "user", "content": CALL}],
        "tools": [LOOK],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.1,
        "top_p": 1,
        "n": 1,
    }
    chunks = http.post("/v1/chat/completions", json=body).text
    assert '"name":"look"' in chunks
    assert chunks.rstrip().endswith("data: [DONE]")


def test_open_webui(http: httpx.Client) -> None:
    """It lists tags and running models, adds `:latest` to names without a tag, looks for them among
    those of the list, and streams NDJSON."""
    assert http.get("/api/version").json()["version"]
    assert isinstance(http.get("/api/ps").json()["models"], list)
    listed = {model["model"]: model for model in http.get("/api/tags").json()["models"]}
    name = next(name for name in listed if name.startswith(TARGET))
    assert ":" in name
    assert {"size", "digest", "modified_at", "details"} <= listed[name].keys()
    shown = http.post("/api/show", json={"name": name}).json()
    assert context_of(shown) == CONTEXT
    body = {
        "model": name,
        "messages": user("A title."),
        "stream": True,
        "think": False,
        "options": {"temperature": 0.2, "num_ctx": 2048, "num_predict": 50, "stop": ["###"]},
        "keep_alive": "5m",
    }
    response = http.post("/api/chat", json=body)
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in response.text.split("\n") if line]
    assert "".join(line["message"]["content"] for line in lines) == "A title."
    assert all(line["created_at"] and line["model"] for line in lines)
    assert lines[-1]["done"]
    assert lines[-1]["eval_duration"] > 0
    assert "warnings" not in lines[-1]


def test_opencode(http: httpx.Client) -> None:
    """Model and context are in its own file; `/v1/models` has both for programs that look."""
    listed = {model["id"]: model for model in http.get("/v1/models").json()["data"]}
    assert listed[TARGET]["context_length"] == CONTEXT
    assert "tools" in listed[TARGET]["capabilities"]
    body = {
        "model": TARGET,
        "max_tokens": 64,
        "messages": [{"role": "system", "content": "Be."}, {"role": "user", "content": CALL}],
        "tools": [LOOK],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert '"name":"look"' in http.post("/v1/chat/completions", json=body).text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("POST", "/api/push"),
        ("DELETE", "/api/delete"),
    ],
)
def test_models_are_not_changed(http: httpx.Client, method: str, path: str) -> None:
    answer = http.request(method, path, json={"model": TARGET})
    assert answer.status_code == 400
    assert path in answer.json()["error"]
    assert answer.json()["code"] == "ollama.models"


def test_errors_of_the_server_are_texts_below_api(http: httpx.Client) -> None:
    for method, path in (("GET", "/api/nothing"), ("GET", "/api/chat")):
        assert isinstance(http.request(method, path).json()["error"], str)
    foreign = http.get("/api/tags", headers={"Origin": "http://example.com"})
    assert foreign.status_code == 403
    assert isinstance(foreign.json()["error"], str)
