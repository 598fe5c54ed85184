"""Which models are known as rerankers, from their name and the files of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omlx.errors import BadRequest
from omlx.models.catalog.facts import Reranking, is_reranker, reranking
from omlx.models.catalog.files import ModelFiles
from omlx.models.catalog.registry import ModelEntry


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
        with pytest.raises(BadRequest) as caught:
            reranking(ModelEntry(model, tmp_path, "test"))
        assert caught.value.code == "rerank.undeclared"


def test_what_a_model_declares_comes_before_its_name(tmp_path: Path) -> None:
    name = "me/Qwen3-Reranker-tuned"
    declare(tmp_path, "Transformer", "Pooling")
    assert not is_reranker(ModelFiles.at(tmp_path), name)
    declare(tmp_path, "Transformer", "LogitScore")
    with pytest.raises(BadRequest) as caught:
        reranking(ModelEntry(name, tmp_path, "test"))
    assert caught.value.code == "rerank.tokens"
    (tmp_path / "1_LogitScore").mkdir()
    (tmp_path / "1_LogitScore/config.json").write_text('{"true_token_id": 5, "false_token_id": 3}')
    assert reranking(ModelEntry(name, tmp_path, "test")) == Reranking((5, 3))
    prompts = {"prompts": {"a": "Judge."}, "default_prompt_name": "a"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    assert reranking(ModelEntry("any", tmp_path, "test")) == Reranking((5, 3), "Judge.")
