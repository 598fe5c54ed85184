"""Library of a model's classes, by config: mlx-lm, its text model alone, mlx-vlm, own code."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from omlx.machine import extra_command
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
        ({"model_type": "glm5_next", "text_config": {"model_type": "glm6"}}, "model.unsupported"),
        ({"model_type": "step3p7", "text_config": {"model_type": 7}}, "model.unsupported"),
        ({"model_type": "bert", "hidden_act": "relu"}, "model.encoder_config"),
        ({**TEXT, "rope_scaling": {"type": "unheard-of", "factor": 2}}, "model.rope"),
        ({**TEXT, "model_file": "model.py"}, "model.remote_code"),
    ],
)
def test_no_library_has_a_reason(config: dict[str, Any], code: str) -> None:
    reason = choose(config)
    assert reason.code == code
    assert config_reason(config) == reason


def test_own_code_is_chosen_where_it_is_trusted() -> None:
    config = {**TEXT, "model_file": "model.py"}
    assert choose(config, trusted=True) == Classes(Library.OWN)


@pytest.mark.parametrize(
    ("model_type", "code", "extra"),
    [
        ("bert", "model.encoder_extra", "encoders"),
        ("qwen4_exp", "model.library_extra", "vision"),
    ],
)
def test_without_its_library_the_reason_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, model_type: str, code: str, extra: str
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    reason = choose({"model_type": model_type})
    assert (reason.code, reason.params["command"]) == (code, extra_command(extra))
    assert extra_command(extra) in reason.message


@pytest.fixture
def mlx_vlm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with the modules of two models."""
    for name in ("k2_horizon", "glm_moe_dsa"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "__init__.py").touch()
    spec = ModuleSpec("mlx_vlm", None)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(module, "find_spec", lambda name: spec)
    return tmp_path


@pytest.mark.usefixtures("mlx_vlm")
@pytest.mark.parametrize(
    ("config", "setting", "library"),
    [
        ({"model_type": "k2_horizon"}, "auto", Library.MLX_VLM),
        ({"model_type": "glm_moe_dsa"}, "auto", Library.MLX_LM),
        ({"model_type": "glm_moe_dsa", "index_topk_freq": 1}, "auto", Library.MLX_LM),
        ({"model_type": "glm_moe_dsa", "index_topk_freq": 4}, "auto", Library.MLX_VLM),
        ({"model_type": "glm_moe_dsa", "indexer_types": ["full"]}, "auto", Library.MLX_VLM),
        ({"model_type": "glm_moe_dsa", "index_topk_freq": 4}, "mlx-lm", Library.MLX_LM),
        ({"model_type": "glm_moe_dsa"}, "mlx-vlm", Library.MLX_VLM),
    ],
)
def test_mlx_vlm_has_what_mlx_lm_lacks_or_what_is_set(
    config: dict[str, Any], setting: str, library: Library
) -> None:
    assert choose(config, library=setting) == Classes(library)


@pytest.mark.usefixtures("mlx_vlm")
@pytest.mark.parametrize(
    ("model_type", "setting", "code"),
    [
        ("mimo_v2", "auto", "model.library_extra"),  # an older mlx-vlm
        ("hal9000", "mlx-vlm", "model.unsupported"),
        ("k2_horizon", "mlx-lm", "model.unsupported"),
        ("llama", "mlx-vlm", "model.unsupported"),
    ],
)
def test_a_library_without_the_classes_is_a_reason(
    model_type: str, setting: str, code: str
) -> None:
    reason = choose({"model_type": model_type}, library=setting)
    assert reason.code == code
