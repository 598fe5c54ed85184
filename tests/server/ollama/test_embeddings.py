"""Embeddings with Ollama's official client: the vectors of /v1/embeddings."""

from __future__ import annotations

from typing import Any

import ollama
import pytest

from tests.server.openai.test_embeddings import server as server
from tests.server.running import TARGET, Running

MODEL = "t/last"
TEXTS = ["One river.", "Two longer rivers, and rain."]


def test_the_vectors_are_those_of_v1(server: Running) -> None:
    made = server.openai.embeddings.create(model=MODEL, input=TEXTS, encoding_format="float")
    few = server.openai.embeddings.create(
        model=MODEL, input=TEXTS[0], dimensions=8, encoding_format="float"
    )
    expected = [entry.embedding for entry in made.data]
    with ollama.Client(server.url) as client:
        both = client.embed(MODEL, TEXTS)
        assert both.embeddings == expected
        assert both.prompt_eval_count == made.usage.prompt_tokens
        assert both.total_duration > 0
        assert client.embed(f"{MODEL}:latest", TEXTS[0]).embeddings == expected[:1]
        cut = client.embed(MODEL, TEXTS[0], dimensions=8, truncate=True)
        assert cut.embeddings == [few.data[0].embedding]
        assert client.embeddings(MODEL, TEXTS[1]).embedding == expected[1]
        assert "embedding" in client.show(MODEL).capabilities
    listed = server.http.get(f"/api/v0/models/{MODEL}").json()
    assert (listed["type"], listed["capabilities"]) == ("embeddings", [])


def test_nothing_to_embed_loads_the_model(server: Running) -> None:
    with ollama.Client(server.url) as client:
        assert client.embed(MODEL, "").embeddings == []
        assert client.embeddings(MODEL, "").embedding == []
        assert f"{MODEL}:latest" in [model.model for model in client.ps().models]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"model": TARGET, "input": "x"}, "embedding.undeclared"),
        ({"model": MODEL, "input": "word " * 2000}, "embedding.too_long"),
        ({"model": MODEL, "input": ["x"] * 2049}, "request.too_many"),
        ({"model": MODEL, "input": [1, 2]}, "request.type"),
        ({"model": MODEL, "input": "x", "dimensions": 33}, "embedding.dimensions"),
        ({"model": "t/none", "input": "x"}, "model.not_found"),
    ],
)
def test_what_is_wrong_is_named(server: Running, body: dict[str, Any], named: str) -> None:
    answer = server.http.post("/api/embed", json=body)
    assert 400 <= answer.status_code < 500
    assert (answer.json()["code"], isinstance(answer.json()["error"], str)) == (named, True)
