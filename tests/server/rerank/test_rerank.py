"""Ranking over a real socket, compared with plain mlx-lm passes over each pair alone."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import mlx.core as mx
import pytest
from openai import BadRequestError

from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.models.texts import Judgement
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.schema import Settings
from omlx.settings.store import Store
from tests.server.rerank.judges import CONTEXT, YES_NO, declare, declared_score, qwen_score, write
from tests.server.running import DEMO, PATIENCE_S, TARGET, Running, omlx

QUERY = "Where does the Rhine rise?"
LONG = "A long text about rivers and rain. " * 45
DOCUMENTS = ["It rises in the Alps.", LONG, "No river.", "Ein Fluß, 한국어, \U0001f30a", "x"]
QWEN, DECLARED = "t/Qwen3-Reranker-tiny", "t/declared"
INSTRUCTION = "Find the passage that names a mountain"


@dataclass(frozen=True)
class Site:
    running: Running
    http: httpx.Client
    qwen: ModelEntry
    declared: ModelEntry

    def rank(self, model: str = QWEN, path: str = "/v1/rerank", **fields: Any) -> dict[str, Any]:
        body = {"model": model, "query": QUERY, "documents": DOCUMENTS} | fields
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("judges")
    score = {"true_token_id": YES_NO[0], "false_token_id": YES_NO[1]}
    qwen = write(home / "Qwen3-Reranker-tiny")
    declared = declare(write(home / "declared", words=False), score, INSTRUCTION)
    others = (
        write(home / "Qwen3-Reranker-wordless", words=False),
        declare(write(home / "single"), score | {"false_token_id": None}),
        declare(write(home / "outside"), score | {"true_token_id": 10**6}),
        write(home / "plain"),
    )
    registry = Registry((*DEMO.entries, qwen, declared, *others))
    with omlx(Settings(dtype="float32"), registry=registry) as running:
        http = running.http
        yield Site(running, http, qwen, declared)


def test_scores_are_those_of_each_pair_alone(site: Site) -> None:
    answer = site.rank()
    expected = {at: qwen_score(site.qwen, QUERY, document) for at, document in enumerate(DOCUMENTS)}
    found = {result["index"]: result["relevance_score"] for result in answer["results"]}
    assert found == pytest.approx(expected, abs=1e-5)
    assert len({round(score, 4) for score in expected.values()}) == len(DOCUMENTS)
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert answer["model"] == QWEN
    assert answer["id"].startswith("rerank-")
    tokens = answer["usage"]["total_tokens"]
    assert tokens > CONTEXT / 2
    assert answer["usage"]["prompt_tokens"] == answer["meta"]["tokens"]["input_tokens"] == tokens
    assert "warnings" not in answer


def test_a_declared_reranker_has_its_own_prompt_and_tokens(site: Site) -> None:
    for fields, instruction in (({}, INSTRUCTION), ({"instruction": "Else"}, "Else")):
        answer = site.rank(DECLARED, **fields)
        found = {result["index"]: result["relevance_score"] for result in answer["results"]}
        expected = {
            at: declared_score(site.declared, QUERY, document, instruction)
            for at, document in enumerate(DOCUMENTS)
        }
        assert found == pytest.approx(expected, abs=1e-5)


def test_an_instruction_takes_the_place_of_the_default(site: Site) -> None:
    (result,) = site.rank(documents=DOCUMENTS[:1], instruction=INSTRUCTION)["results"]
    expected = qwen_score(site.qwen, QUERY, DOCUMENTS[0], INSTRUCTION)
    assert result["relevance_score"] == pytest.approx(expected, abs=1e-5)
    assert expected != pytest.approx(qwen_score(site.qwen, QUERY, DOCUMENTS[0]), abs=1e-4)


def test_equal_documents_keep_their_order(site: Site) -> None:
    results = site.rank(documents=["x", "a river", "x", "a river", "x"])["results"]
    of = {"x": [], "a river": []}
    for result in results:
        of["a river" if result["index"] % 2 else "x"].append(result["index"])
    assert of == {"x": [0, 2, 4], "a river": [1, 3]}


def test_the_best_documents_and_their_texts(site: Site) -> None:
    every = site.rank()["results"]
    assert [set(result) for result in every] == [{"index", "relevance_score"}] * len(DOCUMENTS)
    assert site.rank(top_n=2)["results"] == every[:2]
    assert site.rank(top_n=99)["results"] == every  # a limit, as in Cohere's API
    parts = [{"text": document, "id": "mine"} for document in DOCUMENTS]
    assert site.rank(documents=parts, return_documents=True)["results"] == [
        result | {"document": {"text": DOCUMENTS[result["index"]]}} for result in every
    ]


@pytest.mark.parametrize("path", ["/rerank", "/v2/rerank"])
def test_other_paths_of_clients(site: Site, path: str) -> None:
    assert site.rank(path=path)["results"] == site.rank()["results"]


def test_documents_are_not_cut_and_the_answer_says_so(site: Site) -> None:
    answer = site.rank(max_tokens_per_doc=4, max_chunks_per_doc=None, priority=1)
    assert answer["results"] == site.rank()["results"]
    (warning,) = answer["warnings"]
    assert (warning["code"], warning["params"]) == (
        "rerank.not_cut",
        {"field": "max_tokens_per_doc"},
    )


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": "t/none"}, "model_not_found", "model"),
        ({"model": TARGET}, "rerank.undeclared", "model"),
        ({"model": "t/plain"}, "rerank.undeclared", "model"),
        ({"model": "t/Qwen3-Reranker-wordless"}, "rerank.tokens", "model"),
        ({"model": "t/single"}, "rerank.tokens", "model"),
        ({"model": "t/outside"}, "rerank.tokens", "model"),
        ({"model": None}, "request.type", "model"),
        ({"query": ""}, "request.empty", "query"),
        ({"documents": []}, "request.empty", "documents"),
        ({"documents": "x"}, "request.type", "documents"),
        ({"documents": ["x", ""]}, "request.empty", "documents[1]"),
        ({"documents": ["x", 3]}, "request.type", "documents[1]"),
        ({"documents": ["x", {"title": "y"}]}, "request.missing", "documents[1].text"),
        ({"documents": ["x"] * 1001}, "request.too_many", "documents"),
        ({"documents": ["x", LONG * 4]}, "context_length_exceeded", "documents[1]"),
        ({"documents": ["x", "word " * 10**6]}, "context_length_exceeded", "documents[1]"),
        ({"query": LONG * 4}, "context_length_exceeded", "documents[0]"),
        ({"top_n": 0}, "request.range", "top_n"),
        ({"top_n": -1}, "request.range", "top_n"),
        ({"top_n": 1.5}, "request.type", "top_n"),
        ({"rank_fields": ["title"]}, "request.unsupported", "rank_fields"),
    ],
)
def test_what_is_wrong_is_named(site: Site, fields: dict[str, Any], code: str, param: str) -> None:
    body = {"model": QWEN, "query": QUERY, "documents": DOCUMENTS} | fields
    answer = site.http.post("/v1/rerank", json=body)
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert answer.status_code == (404 if code == "model_not_found" else 400)
    assert answer.json()["message"] == error["message"]  # as Cohere's client reads it
    if param.startswith("documents"):
        assert param in error["message"]


def test_clients_see_which_models_rank(site: Site) -> None:
    models = {model["id"]: model for model in site.http.get("/v1/models").json()["data"]}
    ranking = [name for name, model in models.items() if model["capabilities"] == ["rerank"]]
    assert {QWEN, DECLARED} <= set(ranking)
    assert not {TARGET, "t/plain"} & set(ranking)
    with pytest.raises(BadRequestError) as caught:
        site.running.openai.embeddings.create(model=DECLARED, input="x")
    assert caught.value.code == "embedding.modules"


def test_beside_an_answer_its_tokens_do_not_change(site: Site) -> None:
    asked = {"model": QWEN, "prompt": "x", "max_tokens": 300, "temperature": 0}
    alone = site.running.openai.completions.create(**asked).choices[0].text
    ranked = site.rank()["results"]
    stream = site.running.openai.completions.create(**asked, stream=True)
    text = next(stream).choices[0].text
    beside = site.rank()["results"]
    text += "".join(chunk.choices[0].text for chunk in stream)
    assert text == alone
    assert beside == ranked


def test_a_client_that_leaves_ends_the_work(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[float] = []
    finish = Judgement.finish

    def counted(judgement: Judgement, result: mx.array) -> None:
        finish(judgement, result)
        read.append(judgement.score)

    monkeypatch.setattr(Judgement, "finish", counted)
    content = json.dumps({"model": QWEN, "query": QUERY, "documents": [LONG] * 1000}).encode()
    address = urlsplit(site.running.url)
    head = f"POST /v1/rerank HTTP/1.1\r\nHost: {address.netloc}\r\n"
    with socket.create_connection((address.hostname, address.port)) as connection:
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content)
        wait_for(lambda: len(read) >= 3)
        assert site.running.pool.status(QWEN).active == 1
    wait_for(lambda: site.running.pool.status(QWEN).active == 0)
    assert len(read) < 1000
    assert site.rank()["results"]


def test_a_text_for_which_there_is_no_memory_is_refused(tmp_path: Path) -> None:
    entry = write(tmp_path / "Qwen3-Reranker-tiny", context=1 << 16)
    configuration = LiveConfiguration((), Store(tmp_path))
    configuration.patch({"memory_limit": 1 << 29, "dtype": "float32"})
    configuration.patch({"pinned": True}, entry.id)  # else it is evicted while it is idle
    taken: list[mx.array] = []

    def used() -> int:  # not what mlx counts: arrays of tests before this one may be freed now
        return sum(array.nbytes for array in taken)

    with omlx(
        configuration=configuration, registry=Registry((entry,)), default=None, used=used
    ) as running:
        http = running.http
        body = {"model": entry.id, "query": QUERY, "documents": ["x"]}
        first = http.post("/v1/rerank", json=body)
        assert first.status_code == 200, first.text
        taken.append(mx.zeros(1 << 27))
        mx.eval(taken)
        small = http.post("/v1/rerank", json=body)
        assert small.status_code == 200, small.text
        answer = http.post("/v1/rerank", json=body | {"documents": [LONG]})
        taken.clear()
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "memory.full"
    assert int(answer.headers["Retry-After"]) > 0


def wait_for(condition: Any) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)  # polls another thread


@pytest.fixture(params=["Client", "ClientV2"])
def client(site: Site, request: pytest.FixtureRequest) -> Iterator[Any]:
    cohere = pytest.importorskip("cohere")
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
    cohere = pytest.importorskip("cohere")
    with pytest.raises(cohere.BadRequestError) as caught:
        client.rerank(model=TARGET, query=QUERY, documents=DOCUMENTS)
    assert TARGET in caught.value.body["message"]
    assert caught.value.body["error"]["code"] == "rerank.undeclared"
    with pytest.raises(cohere.NotFoundError):
        client.rerank(model="t/none", query=QUERY, documents=DOCUMENTS)
