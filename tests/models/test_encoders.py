"""Encoders and rerankers: which can be loaded, and how much they read, judged by their files."""

from __future__ import annotations

import json
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from omlx.errors import BadRequest
from omlx.machine import extra_command
from omlx.models.catalog.config import encoder_window
from omlx.models.catalog.facts import Reranking, is_reranker, reranking
from omlx.models.catalog.files import ModelFiles
from omlx.models.catalog.inspect_checkpoint import inspect_checkpoint
from omlx.models.catalog.registry import ModelEntry, Status
from omlx.models.library import choose
from tests.refusals import refused


def folder(directory: Path, **config: Any) -> Path:
    (directory / "config.json").write_text(json.dumps({"model_type": "bert"} | config))
    (directory / "model.safetensors").write_bytes(b"weights")
    return directory


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "find_spec", lambda name: ModuleSpec(name, None))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("config", "refused"),
    [
        ({}, None),
        ({"hidden_act": "gelu", "position_embedding_type": "absolute"}, None),
        ({"model_type": "modernbert", "hidden_activation": "gelu"}, None),
        ({"model_type": "xlm-roberta"}, None),
        ({"hidden_act": "gelu_new"}, "hidden_act"),
        ({"model_type": "modernbert", "hidden_activation": "silu"}, "hidden_activation"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a"}}, None),
        (
            {"architectures": ["BertForSequenceClassification"], "id2label": {"0": 0, "1": 1}},
            "id2label",
        ),
    ],
)
def test_configs_that_are_computed_as_they_ask(
    tmp_path: Path, config: dict[str, Any], refused: str | None
) -> None:
    entry = inspect_checkpoint("e/one", folder(tmp_path, **config), "test")
    if refused is None:
        assert entry.usable
    else:
        assert (entry.reason.code, entry.reason.params["key"]) == ("model.encoder_config", refused)


def test_without_the_extra_the_reason_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "find_spec", lambda name: None)
    entry = inspect_checkpoint("e/one", folder(tmp_path), "test")
    assert (entry.status, entry.reason.code) == (Status.SKIPPED, "model.encoder_extra")
    assert extra_command("encoders") in entry.reason.message


@pytest.mark.parametrize(
    ("config", "declared", "window"),
    [
        ({"max_position_embeddings": 512}, None, 512),
        ({"max_position_embeddings": 512}, {"max_seq_length": 256}, 256),
        ({"max_position_embeddings": 512}, {"max_seq_length": None}, 512),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 514}, None, 512),
        (
            {"model_type": "xlm-roberta", "max_position_embeddings": 520, "pad_token_id": 3},
            None,
            516,
        ),
        ({"model_type": "xlm-roberta", "n_positions": 514, "pad_token_id": None}, None, 512),
        ({}, {"max_seq_length": 128}, 128),
        ({}, None, None),
    ],
)
def test_the_window_is_what_positions_and_declaration_allow(
    tmp_path: Path, config: dict[str, Any], declared: dict[str, Any] | None, window: int | None
) -> None:
    if declared is not None:
        (tmp_path / "sentence_bert_config.json").write_text(json.dumps(declared))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert encoder_window(ModelFiles.at(tmp_path)) == window


def declare(folder: Path, *kinds: str) -> None:
    modules = [{"type": f"sentence_transformers.{kind}", "path": ""} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("Qwen/Qwen3-Reranker-0.6B", True),
        ("mlx-community/Qwen3-Reranker-4B-mxfp8", True),
        ("me/my_qwen3_reranker", True),
        ("Qwen/Qwen3-0.6B", False),
        ("Qwen/Qwen3-VL-Reranker-2B", False),
        ("BAAI/bge-reranker-v2-m3", False),
    ],
)
def test_models_known_by_name(tmp_path: Path, model: str, known: bool) -> None:
    assert is_reranker(ModelFiles.at(tmp_path), model) is known
    if known:
        assert reranking(ModelEntry(model, tmp_path, "test")) == Reranking()
    else:
        with refused(BadRequest, "rerank.undeclared"):
            reranking(ModelEntry(model, tmp_path, "test"))


def test_what_a_model_declares_comes_before_its_name(tmp_path: Path) -> None:
    name = "me/Qwen3-Reranker-tuned"
    declare(tmp_path, "Transformer", "Pooling")
    assert not is_reranker(ModelFiles.at(tmp_path), name)
    declare(tmp_path, "Transformer", "LogitScore")
    with refused(BadRequest, "rerank.tokens"):
        reranking(ModelEntry(name, tmp_path, "test"))
    (tmp_path / "1_LogitScore").mkdir()
    (tmp_path / "1_LogitScore/config.json").write_text('{"true_token_id": 5, "false_token_id": 3}')
    assert reranking(ModelEntry(name, tmp_path, "test")) == Reranking((5, 3))
    prompts = {"prompts": {"a": "Judge."}, "default_prompt_name": "a"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    assert reranking(ModelEntry("any", tmp_path, "test")) == Reranking((5, 3), "Judge.")
