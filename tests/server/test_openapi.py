from __future__ import annotations

import httpx
import pytest

from tests.server.running import omlx


@pytest.fixture(scope="module")
def document() -> dict[str, dict[str, dict[str, dict[str, object]]]]:
    with omlx() as server:
        answer = httpx.get(f"{server.url}/openapi.json")
    content: dict[str, dict[str, dict[str, dict[str, object]]]] = answer.json()
    return content


def test_bodies_are_documented(
    document: dict[str, dict[str, dict[str, dict[str, object]]]],
) -> None:
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


def test_names_of_schemas_hold_no_module(
    document: dict[str, dict[str, dict[str, dict[str, object]]]],
) -> None:
    assert [name for name in document["components"]["schemas"] if "__" in name] == []
