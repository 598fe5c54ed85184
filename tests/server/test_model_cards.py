"""Context, abilities and status of models, as clients of several servers look for them."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from omlx.engine.speculation.cost_model import CostModel
from omlx.engine.speculation.strategy import parse
from omlx.engine.types import ModelSnapshot
from omlx.errors import Reason
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.facts import model_facts
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.speculation import SpeculationConfig
from omlx.records import DrafterStats, Gate, PrefixStats, RequestStats
from omlx.server.endpoints import status
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
    model = server.claude.models.retrieve(TARGET)
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


PAYS = Gate("on")
OFF = Gate("off", Reason("spec.off.does_not_pay", {"speedup": 0.8}))
EMPTY = PrefixStats(None, 0, 100, 0, 0, 0, 0, 0, {}, {}, asked=0, refused=0)
DRAFTERS = {"ngram": "ngram", "org/small": "draft"}


def answer(
    drafters: dict[str, DrafterStats], gates: dict[str, Gate], speedup: float | None
) -> RequestStats:
    reason = Reason("spec.on" if drafters else "spec.observing")
    return RequestStats(9, 0, 30, 1.0, 1.0, 1.0, 0, drafters, reason, gates=gates, speedup=speedup)


def snapshot(
    drafters: dict[str, str] = DRAFTERS, off: Reason | None = None, **costs: Any
) -> ModelSnapshot:
    return ModelSnapshot(drafters, off, {}, None, {**CostModel().to_json(), **costs}, EMPTY)


def test_a_cache_that_refused_every_insertion_has_a_warning() -> None:
    assert status.prefixes(EMPTY)["warning"] is None
    assert status.prefixes(replace(EMPTY, asked=3, refused=2))["warning"] is None
    record = status.prefixes(replace(EMPTY, asked=3, refused=3))
    assert record["warning"]["code"] == "prefix.stored_none"
    assert record["warning"]["params"] == {"asked": 3, "limit": 100}
    assert (
        status.prefixes(replace(EMPTY, off=Reason("prefix.off.no_room")))["off"]["code"]
        == "prefix.off.no_room"
    )


def test_effective_is_what_is_left_of_the_strategy() -> None:
    def effective(text: str, drafters: dict[str, str], off: Reason | None = None) -> str:
        return str(
            status.effective(SpeculationConfig(strategy=parse(text)), snapshot(drafters, off))
        )

    lookup = {"ngram": "ngram"}
    assert effective("auto", DRAFTERS) == effective("auto", lookup) == "auto"
    assert effective("ngram:m=8;draft", DRAFTERS) == "ngram:m=8;draft"
    assert effective("ngram:m=8;draft", lookup) == "ngram:m=8"
    assert (
        effective("draft", lookup) == effective("off", DRAFTERS) == effective("auto", {}) == "off"
    )
    assert effective("auto", DRAFTERS, Reason("spec.off.cache", {"layers": "X"})) == "off"


def test_live_acceptance_is_by_position_and_the_newest_gate_counts() -> None:
    recent = [
        answer(
            {"org/small": DrafterStats(8, 5, 4, [3, 2])},
            {"org/small": PAYS, "ngram": Gate("observing")},
            1.25,
        ),
        answer({"org/small": DrafterStats(12, 6, 4, [4, 1, 1])}, {"org/small": PAYS}, 1.1),
        answer({}, {"org/small": OFF}, None),
    ]
    record = status.speculation(SpeculationConfig(), None, snapshot(), recent)
    small, lookup = record["drafters"]["org/small"], record["drafters"]["ngram"]
    assert (small["state"], small["reason"]["code"]) == ("off", "spec.off.does_not_pay")
    assert small["states"] == {"observing": 0, "on": 2, "off": 1}
    assert (small["proposed"], small["accepted"], small["rounds"]) == (20, 11, 8)
    assert small["acceptance"] == [0.875, 0.375, 0.125]
    assert (lookup["state"], lookup["acceptance"], lookup["rounds"]) == ("observing", None, 0)
    assert (record["requests"], record["speedup"]) == (3, 1.175)


def test_plain_answers_say_nothing_about_speed() -> None:
    assert status.speedup([answer({}, {}, 1.0)]) is None


def test_costs_are_tables_of_milliseconds() -> None:
    costs = CostModel()
    for width, context, seconds in (
        (0, 100, 0.01),
        (1, 100, 0.011),
        (4, 100, 0.02),
        (4, 3000, 0.03),
    ):
        costs.target.learn(width, context, seconds)
    costs.learn_draft("org/small", 4, 1, 100, 0.004)
    record = status.costs(costs.to_json())
    assert record["target"]["contexts"] == [256, 4096]
    assert record["target"]["widths"] == [1, 4]
    assert record["target"]["ms"] == [[11.0, None], [20.0, 25.0]]
    assert record["target"]["plain_ms"] == [10.0, None]
    assert record["drafts"]["org/small"]["ms"] == [[1.0]]


def test_batching() -> None:
    assert status.batching(None) == {"batchable": True, "reason": None}
    reason = status.batching(Reason("batch.off.no_merge", {"layer": "X"}))["reason"]
    assert reason["code"] == "batch.off.no_merge"
