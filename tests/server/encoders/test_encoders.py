"""Encoders over a real socket: vectors and scores compared with passes in NumPy."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openai import BadRequestError, OpenAI
from safetensors.numpy import load_file, save_file

from omlx.engine.types import CalibrationState
from omlx.models.catalog.registry import Registry
from omlx.models.pool.served import State
from omlx.settings.schema import Settings
from tests.server.dialects import user
from tests.server.encoders.tiny import CONFIGS, POSITIONS, declare, ids_of, score, states, write
from tests.server.running import DEMO, PATIENCE_S, TARGET, Running, omlx

pytestmark = pytest.mark.needs_extra

TEXTS = ["The river rises in the alps.", "x", "A long text about rain, rivers and rain. " * 5]
POOLING: dict[str, dict[str, Any]] = {
    "cls": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
    "mean": {"pooling_mode": "mean"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("encoders")
    entries = []
    for kind in CONFIGS:
        for mode, pooling in POOLING.items():
            made = write(home / f"{kind}-{mode}", kind)
            entries.append(declare(made, pooling, normalize=mode == "cls"))
        entries.append(write(home / f"{kind}-judge", kind, labels=1))
    entries.append(write(home / "bare", "bert"))
    short = declare(write(home / "short", "bert"), POOLING["mean"], normalize=True)
    (short.path / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    registry = Registry((*DEMO.entries, *entries, short))
    with omlx(Settings(dtype="float32"), registry=registry, calibrates=True) as running:
        yield running


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("mode", POOLING)
def test_vectors_of_a_batch_of_texts(server: Running, client: OpenAI, kind: str, mode: str) -> None:
    model = f"e/{kind}-{mode}"
    answer = client.embeddings.create(model=model, input=TEXTS, encoding_format="float")
    entry, tokens = server.pool.entry(model), 0
    for text, found in zip(TEXTS, answer.data, strict=True):
        ids, types = ids_of(entry, text)
        read = states(kind, ids, types)
        expected = read[0] if mode == "cls" else read.mean(axis=0)
        if mode == "cls":  # the one that declares Normalize
            expected /= np.linalg.norm(expected)
        assert found.embedding == pytest.approx(expected.tolist(), abs=2e-5)
        tokens += len(ids)
    assert answer.usage.prompt_tokens == tokens


@pytest.mark.parametrize("kind", CONFIGS)
def test_scores_of_documents(server: Running, http: httpx.Client, kind: str) -> None:
    model, query = f"e/{kind}-judge", "Where does the river rise?"
    body = {"model": model, "query": query, "documents": TEXTS}
    answer = http.post("/v1/rerank", json=body).json()
    found = {result["index"]: result["relevance_score"] for result in answer["results"]}
    pairs = [ids_of(server.pool.entry(model), query, text) for text in TEXTS]
    expected = {at: score(kind, *pair) for at, pair in enumerate(pairs)}
    assert found == pytest.approx(expected, abs=2e-5)
    assert len({round(value, 3) for value in expected.values()}) == len(TEXTS)
    assert answer["usage"]["total_tokens"] == sum(len(ids) for ids, _ in pairs)


def test_clients_see_what_each_can_do(http: httpx.Client) -> None:
    models = {model["id"]: model for model in http.get("/v1/models").json()["data"]}
    assert models["e/bert-cls"]["capabilities"] == ["embeddings"]
    assert models["e/modernbert-judge"]["capabilities"] == ["rerank"]
    assert models["e/bare"]["capabilities"] == []
    lengths = [models[f"e/{kind}-cls"]["context_length"] for kind in CONFIGS]
    assert lengths == [POSITIONS] * len(CONFIGS)
    assert models["e/short"]["context_length"] == 8


def test_vectors_beside_an_answer_whose_tokens_do_not_change(client: OpenAI) -> None:
    asked = {"model": TARGET, "prompt": "x", "max_tokens": 100, "temperature": 0, "seed": 1}
    alone = client.completions.create(**asked).choices[0].text
    (vector,) = client.embeddings.create(model="e/bert-cls", input=TEXTS[0]).data
    stream = client.completions.create(**asked, stream=True)
    text = next(stream).choices[0].text
    (beside,) = client.embeddings.create(model="e/bert-cls", input=TEXTS[0]).data
    text += "".join(chunk.choices[0].text for chunk in stream)
    assert (text, beside.embedding) == (alone, vector.embedding)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"input": ["x", "x " * POSITIONS]}, "context_length_exceeded", "input[1]"),
        ({"input": "x " * POSITIONS}, "context_length_exceeded", "input"),
        ({"model": "e/short", "input": "x x x x x x x"}, "context_length_exceeded", "input"),
        ({"input": [10**6]}, "request.token", "input"),
        ({"model": "e/bare"}, "embedding.undeclared", "model"),
        ({"model": "e/bert-judge"}, "embedding.undeclared", "model"),
    ],
)
def test_what_is_wrong_with_a_text_is_named(
    client: OpenAI, fields: dict[str, Any], code: str, param: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.embeddings.create(**({"model": "e/bert-cls", "input": "x"} | fields))
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": "e/bert-cls"}, "rerank.undeclared", "model"),
        ({"instruction": "x"}, "request.unsupported", "instruction"),
        ({"documents": ["x", "x " * POSITIONS]}, "context_length_exceeded", "documents[1]"),
    ],
)
def test_what_is_wrong_with_a_ranking_is_named(
    http: httpx.Client, fields: dict[str, Any], code: str, param: str
) -> None:
    body = {"model": "e/bert-judge", "query": "x", "documents": ["x"]} | fields
    error = http.post("/v1/rerank", json=body).json()["error"]
    assert (error["code"], error["param"]) == (code, param)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": user("x")}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/api/generate", {"prompt": "x"}),
    ],
)
def test_an_encoder_generates_nothing(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answer = http.post(path, json={"model": "e/bert-cls"} | body)
    assert answer.status_code == 400
    assert "model.encoder" in answer.text


def test_it_is_loaded_counted_and_unloaded_as_other_models(
    server: Running, http: httpx.Client
) -> None:
    model = "e/xlm-roberta-mean"
    assert http.post(f"/v1/models/{model}/load").status_code == 200
    status = server.pool.status(model)
    assert status.weights_bytes == server.pool.entry(model).path.joinpath(
        "model.safetensors"
    ).stat().st_size - _header(server, model)
    snapshot = server.engine.snapshot(model).result()
    assert snapshot is not None
    assert snapshot.calibration is CalibrationState.OFF  # there is no pass to measure
    shown = http.get(f"/v1/models/{model}").json()
    assert shown["loaded"] is True
    assert shown["batching"]["reason"]["code"] == "model.encoder"
    assert http.post(f"/v1/models/{model}/unload").status_code == 200
    assert server.pool.status(model).weights_bytes == 0


def test_an_idle_one_is_evicted(server: Running, http: httpx.Client) -> None:
    model, end = "e/modernbert-mean", time.monotonic() + PATIENCE_S
    body = {"model": model, "input": "x", "keep_alive": 0}
    assert http.post("/api/embed", json=body).status_code == 200
    while server.pool.status(model).state is not State.UNLOADED:
        assert time.monotonic() < end
        time.sleep(0.05)  # the sweep comes every second


def _header(server: Running, model: str) -> int:
    """The bytes before the arrays of a file."""
    with server.pool.entry(model).path.joinpath("model.safetensors").open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")


def test_a_request_that_names_no_model_is_not_for_one_that_was_used_last(tmp_path: Path) -> None:
    entry = declare(write(tmp_path / "last", "bert"), POOLING["mean"], normalize=True)
    registry = Registry((*DEMO.entries, entry))
    with omlx(registry=registry, default=None) as running:
        http = running.http
        asked = {"prompt": "x", "max_tokens": 1}
        for path, body in (
            ("/v1/completions", asked | {"model": TARGET}),
            ("/v1/embeddings", {"model": entry.id, "input": "x"}),
        ):
            assert http.post(path, json=body).status_code == 200
        assert [served.id for served in running.pool.loaded] == [TARGET, entry.id]
        assert http.post("/v1/completions", json=asked).json()["model"] == TARGET


def test_damaged_weights_are_refused_when_it_is_loaded(tmp_path: Path) -> None:
    broken = declare(write(tmp_path / "nan", "bert"), POOLING["mean"], normalize=True)
    arrays = load_file(broken.path / "model.safetensors")
    arrays["embeddings.LayerNorm.bias"][0] = np.nan
    save_file(arrays, broken.path / "model.safetensors")
    narrow = declare(write(tmp_path / "narrow", "bert"), POOLING["mean"], normalize=True)
    config = json.loads((narrow.path / "config.json").read_text())
    (narrow.path / "config.json").write_text(json.dumps(config | {"hidden_size": 16}))
    registry = Registry((broken, narrow))
    with omlx(registry=registry, default=None) as running:
        http = running.http
        bodies = [{"model": entry.id, "input": "x"} for entry in registry.entries]
        answers = [http.post("/v1/embeddings", json=body) for body in bodies]
    codes = [(answer.status_code, answer.json()["error"]["code"]) for answer in answers]
    assert codes == [(400, "model.not_finite"), (400, "model.build")]
