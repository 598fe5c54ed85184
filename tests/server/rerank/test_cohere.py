"""Cohere's official client, of both versions of its API, against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.rerank.test_rerank import DOCUMENTS, QUERY, QWEN, Site
from tests.server.rerank.test_rerank import site as site
from tests.server.running import PATIENCE_S, TARGET

cohere = pytest.importorskip("cohere")


@pytest.fixture(params=["Client", "ClientV2"])
def client(site: Site, request: pytest.FixtureRequest) -> Iterator[Any]:
    with httpx.Client(timeout=PATIENCE_S) as http:
        yield getattr(cohere, request.param)("none", base_url=site.running.url, httpx_client=http)


def test_documents_in_order(client: Any, site: Site) -> None:
    expected = site.rank(top_n=2)
    answer = client.rerank(model=QWEN, query=QUERY, documents=DOCUMENTS, top_n=2)
    found = [(result.index, result.relevance_score) for result in answer.results]
    assert found == [(each["index"], each["relevance_score"]) for each in expected["results"]]
    assert answer.id.startswith("rerank-")
    assert answer.meta.tokens.input_tokens == expected["usage"]["total_tokens"]


def test_an_error_has_its_sentence(client: Any) -> None:
    with pytest.raises(cohere.BadRequestError) as caught:
        client.rerank(model=TARGET, query=QUERY, documents=DOCUMENTS)
    assert TARGET in caught.value.body["message"]
    assert caught.value.body["error"]["code"] == "rerank.undeclared"
    with pytest.raises(cohere.NotFoundError):
        client.rerank(model="t/none", query=QUERY, documents=DOCUMENTS)
