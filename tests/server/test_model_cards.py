"""Context length and abilities of models, as clients of several servers look for them."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.facts import model_facts
from omlx.models.catalog.registry import ModelEntry
from tests.server.running import DEMO, TARGET, Running, omlx

CONTEXT = 4096
NAMES = ("context_length", "max_model_len", "max_context_length")


def test_each_model_of_the_list_says_what_it_can_do(client: OpenAI) -> None:
    (model,) = [model for model in client.models.list() if model.id == TARGET]
    extra: dict[str, Any] = dict(model.model_extra or {})
    assert [extra[name] for name in NAMES] == [CONTEXT] * 3
    assert extra["meta"]["n_ctx"] == CONTEXT
    assert {"completion", "tools", "reasoning", "structured_output"} <= set(extra["capabilities"])
    assert extra["size_bytes"] == extra["meta"]["size"]
    assert model.owned_by == "omlx-demo"
    assert 1_600_000_000 < model.created <= time.time()
    one = client.models.retrieve(TARGET)
    assert {name: (one.model_extra or {})[name] for name in NAMES} == dict.fromkeys(NAMES, CONTEXT)


def test_a_loaded_model_is_marked_and_knows_its_speculation() -> None:
    with omlx() as running:
        http = running.http
        assert http.get(f"/v1/models/{TARGET}").json()["loaded"] is False
        http.post(f"/v1/models/{TARGET}/load")
        model = http.get(f"/v1/models/{TARGET}").json()
    assert model["loaded"] is True
    assert "speculation" in model["capabilities"]
    assert [model[name] for name in NAMES] == [CONTEXT] * 3


def test_anthropics_form_has_the_context_too(server: Running) -> None:
    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as claude:
        model = claude.models.retrieve(TARGET)
    extra = model.model_dump()
    assert (extra["max_input_tokens"], extra["context_length"]) == (CONTEXT, CONTEXT)


@pytest.fixture
def folder(tmp_path: Path) -> ModelEntry:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 1000}')
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    return ModelEntry("mine", tmp_path, "test")


def test_facts_are_read_again_when_a_file_changes(folder: ModelEntry) -> None:
    facts = model_facts(folder.files, folder.id)
    assert (facts.context_length, facts.tools, facts.reasoning) == (1000, False, False)
    assert model_facts(folder.files, folder.id) is facts
    template = folder.path / "chat_template.jinja"
    template.write_text("{% if tools %}{% endif %}[THINK]x[/THINK]")
    (folder.path / "modules.json").write_text("[]")
    facts = model_facts(folder.files, folder.id)
    assert (facts.tools, facts.reasoning, facts.embeddings) == (True, True, True)
    (folder.path / "modules.json").write_text('[{"type": "Transformer"}, {"type": "a.LogitScore"}]')
    facts = model_facts(folder.files, folder.id)
    assert (facts.reranks, facts.embeddings) == (True, False)


@pytest.mark.parametrize("text", ["", "[", "[]", '{"max_position_embeddings": "many"}'])
def test_broken_files_have_facts_nevertheless(folder: ModelEntry, text: str) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        (folder.path / name).write_text(text)
    assert model_facts(folder.files, folder.id).context_length > 0


def test_so_has_an_encoder_with_broken_files(folder: ModelEntry) -> None:
    (folder.path / "sentence_bert_config.json").write_text("[")
    for pad in ("null", '"x"', "1"):
        config = f'{{"model_type": "xlm-roberta", "n_ctx": 100, "pad_token_id": {pad}}}'
        (folder.path / "config.json").write_text(config)
        facts = model_facts(folder.files, folder.id)
        assert (facts.context_length, facts.generates) == (100, False)


def test_three_hundred_models_are_listed_at_once(tmp_path: Path) -> None:
    entries = []
    for number in range(300):
        path = tmp_path / str(number)
        path.mkdir()
        for name in ("config.json", "tokenizer_config.json"):
            shutil.copy(BUNDLED / TARGET / name, path / name)  # a link would change the original
        entries.append(ModelEntry(f"m{number}", path, "test"))
    registry = replace(DEMO, entries=(*DEMO.entries, *entries))
    with omlx(registry=registry) as running:
        http = running.http
        first = http.get("/v1/models").json()
        assert len(first["data"]) == 303
        assert first["data"][-1]["owned_by"] == "local"
        assert http.get("/v1/models").json() == first
