"""Embeddings of a real server for OpenAI's and Ollama's clients, compared with a single pass."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import save_config
from openai import APIStatusError, BadRequestError, OpenAI

from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.settings.schema import Settings
from tests.server.running import DEMO, TARGET, Running, omlx

SIZE = 32
CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": SIZE,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "vocab_size": 4096,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "max_position_embeddings": 1024,
}
LONG = "A long text about rivers and rain. " * 60
KINDS = ["Transformer", "Pooling", "Normalize"]


def write(folder: Path, kinds: list[str], pooling: dict[str, Any]) -> ModelEntry:
    """A tiny model that declares how it pools, with the demo's tokenizer."""
    folder.mkdir()
    for file in (BUNDLED / TARGET).glob("tokenizer*"):
        shutil.copy(file, folder)
    mx.random.seed(3)
    model = qwen3.Model(qwen3.ModelArgs.from_dict(CONFIG))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    save_config(CONFIG, folder / "config.json")
    places = {"Transformer": "", "Pooling": "1_Pooling"}
    types = [
        {"type": f"sentence_transformers.models.{kind}", "path": places.get(kind, kind)}
        for kind in kinds
    ]
    (folder / "modules.json").write_text(json.dumps(types))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    return ModelEntry(f"t/{folder.name}", folder, "test")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("models")
    entries = (
        write(
            home / "last", KINDS, {"word_embedding_dimension": SIZE, "pooling_mode_lasttoken": True}
        ),
        write(
            home / "mean",
            KINDS[:2],
            {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True},
        ),
        write(home / "cls", KINDS, {"pooling_mode_cls_token": True}),
        write(home / "dense", [*KINDS[:2], "Dense"], {"pooling_mode_lasttoken": True}),
    )
    with omlx(Settings(dtype="float32"), registry=Registry((*DEMO.entries, *entries))) as running:
        yield running


def states(ids: list[int]) -> mx.array:
    """Hidden states of a single pass over the whole text."""
    mx.random.seed(3)
    model = qwen3.Model(qwen3.ModelArgs.from_dict(CONFIG))
    return model.model(mx.array([ids]), cache=make_prompt_cache(model))[0]


def tokens(client: OpenAI, text: str) -> list[int]:
    answer = client.post("/../tokenize", body={"model": "t/last", "prompt": text}, cast_to=object)
    return answer["tokens"]


def unit(vector: mx.array) -> list[float]:
    return (vector / mx.linalg.norm(vector)).tolist()


def embed(client: OpenAI, given: Any, model: str = "t/last", **fields: Any) -> list[list[float]]:
    return [
        each.embedding for each in client.embeddings.create(model=model, input=given, **fields).data
    ]


def test_the_last_token_of_short_and_long_texts(client: OpenAI) -> None:
    for text in ("x", LONG):
        (found,) = embed(client, text)
        assert found == pytest.approx(unit(states(tokens(client, text))[-1]), abs=1e-4)


def test_the_mean_as_it_is(client: OpenAI) -> None:
    (found,) = embed(client, LONG, "t/mean")
    assert found == pytest.approx(states(tokens(client, LONG)).mean(axis=0).tolist(), abs=1e-4)


def test_several_texts_or_ids_in_either_format(client: OpenAI) -> None:
    texts = ["One.", "Two, three."]
    both = client.embeddings.create(model="t/last", input=texts, encoding_format="float")
    ids = [tokens(client, text) for text in texts]
    assert both.usage.prompt_tokens == both.usage.total_tokens == sum(map(len, ids))
    assert [each.index for each in both.data] == [0, 1]
    plain = [each.embedding for each in both.data]
    assert embed(client, ids, encoding_format="float") == plain
    assert embed(client, ids[0]) == [pytest.approx(plain[0], abs=1e-6)], (
        "the client asks for base64 by itself"
    )


def test_fewer_dimensions_are_of_length_1_again(client: OpenAI) -> None:
    (found,) = embed(client, "One.", dimensions=8)
    assert found == pytest.approx(unit(states(tokens(client, "One."))[-1][:8]), abs=1e-4)


@pytest.mark.parametrize(
    ("model", "fields", "code"),
    [
        ("t/none", {}, "model_not_found"),
        (TARGET, {}, "embedding.undeclared"),
        ("t/cls", {}, "embedding.pooling"),
        ("t/dense", {}, "embedding.modules"),
        ("t/last", {"dimensions": 33}, "embedding.dimensions"),
        ("t/last", {"dimensions": 0}, "request.range"),
        ("t/last", {"input": ""}, "request.empty"),
        ("t/last", {"input": [10**6]}, "request.token"),
        ("t/last", {"input": ["x"] * 2049}, "request.too_many"),
        ("t/last", {"input": [1] * 1025}, "context_length_exceeded"),
    ],
)
def test_what_is_wrong_is_named(
    client: OpenAI, model: str, fields: dict[str, Any], code: str
) -> None:
    with pytest.raises(APIStatusError) as caught:
        client.embeddings.create(**({"model": model, "input": "x"} | fields))
    assert caught.value.status_code == (404 if model == "t/none" else 400)
    assert caught.value.code == code


def test_a_text_that_is_too_long_is_not_told_of_an_output(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.embeddings.create(model="t/last", input=[[1], [1] * 1025])
    assert "1025" in caught.value.message
    assert "output" not in caught.value.message


MODEL = "t/last"
TEXTS = ["One river.", "Two longer rivers, and rain."]


def test_the_vectors_are_those_of_v1(server: Running, llama: Any) -> None:
    made = server.openai.embeddings.create(model=MODEL, input=TEXTS, encoding_format="float")
    few = server.openai.embeddings.create(
        model=MODEL, input=TEXTS[0], dimensions=8, encoding_format="float"
    )
    expected = [entry.embedding for entry in made.data]
    both = llama.embed(MODEL, TEXTS)
    assert both.embeddings == expected
    assert both.prompt_eval_count == made.usage.prompt_tokens
    assert both.total_duration > 0
    assert llama.embed(f"{MODEL}:latest", TEXTS[0]).embeddings == expected[:1]
    cut = llama.embed(MODEL, TEXTS[0], dimensions=8, truncate=True)
    assert cut.embeddings == [few.data[0].embedding]
    assert llama.embeddings(MODEL, TEXTS[1]).embedding == expected[1]
    assert "embedding" in llama.show(MODEL).capabilities
    listed = server.http.get(f"/api/v0/models/{MODEL}").json()
    assert (listed["type"], listed["capabilities"]) == ("embeddings", [])


def test_nothing_to_embed_loads_the_model(llama: Any) -> None:
    assert llama.embed(MODEL, "").embeddings == []
    assert llama.embeddings(MODEL, "").embedding == []
    assert f"{MODEL}:latest" in [model.model for model in llama.ps().models]


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
def test_what_is_wrong_is_named_in_ollamas_terms(
    server: Running, body: dict[str, Any], named: str
) -> None:
    answer = server.http.post("/api/embed", json=body)
    assert 400 <= answer.status_code < 500
    assert (answer.json()["code"], isinstance(answer.json()["error"], str)) == (named, True)
