"""Library of a model's classes, by config: mlx-lm, its text model alone, mlx-vlm, own code."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from typing import Any

import pytest

from omlx.errors import Reason
from omlx.models.catalog.inspect_checkpoint import config_reason
from omlx.models.library import choose as module
from omlx.models.library.choose import Classes, Library, choose

TEXT = {"model_type": "llama", "hidden_size": 8}


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: ModuleSpec(name, None))


@pytest.mark.parametrize(
    ("config", "classes"),
    [
        (TEXT, Classes(Library.MLX_LM)),
        ({"model_type": "mistral"}, Classes(Library.MLX_LM)),  # under a name that mlx-lm maps
        ({"model_type": "qwen2_vl", "text_config": TEXT}, Classes(Library.MLX_LM)),
        ({"model_type": "smolvlm", "text_config": TEXT}, Classes(Library.MLX_LM, TEXT)),
        ({"model_type": "internvl_chat", "llm_config": TEXT}, Classes(Library.MLX_LM, TEXT)),
        ({"model_type": "bert"}, Classes(Library.MLX_VLM)),
    ],
)
def test_each_config_has_its_library(config: dict[str, Any], classes: Classes) -> None:
    assert choose(config) == classes
    assert config_reason(config) is None


def test_the_embeddings_of_a_wrapper_are_tied_as_it_says() -> None:
    classes = choose({"model_type": "smolvlm", "text_config": TEXT, "tie_word_embeddings": True})
    assert classes == Classes(Library.MLX_LM, {**TEXT, "tie_word_embeddings": True})


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({}, "model.no_type"),
        ({"model_type": 3}, "model.no_type"),
        ({"model_type": "hal9000"}, "model.unsupported"),
        ({"model_type": "smolvlm", "text_config": {"model_type": "hal9000"}}, "model.unsupported"),
        ({"model_type": "bert", "hidden_act": "relu"}, "model.encoder_config"),
        ({**TEXT, "rope_scaling": {"type": "unheard-of", "factor": 2}}, "model.rope"),
        ({**TEXT, "model_file": "model.py"}, "model.remote_code"),
    ],
)
def test_no_library_has_a_reason(config: dict[str, Any], code: str) -> None:
    reason = choose(config)
    assert isinstance(reason, Reason)
    assert reason.code == code
    assert config_reason(config) == reason


def test_own_code_is_chosen_where_it_is_trusted() -> None:
    config = {**TEXT, "model_file": "model.py"}
    assert choose(config, trusted=True) == Classes(Library.OWN)


def test_an_encoder_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    reason = choose({"model_type": "bert"})
    assert isinstance(reason, Reason)
    assert (reason.code, reason.params["extra"]) == ("model.encoder_extra", "omlx[encoders]")
