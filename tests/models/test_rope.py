"""RoPE parameters of transformers 5: every architecture computes what it does with older keys, or
is refused because it would ignore them.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from omlx.models.catalog.config import context_length, longest_context
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.library.rope import rope_overrides, rope_reason
from omlx.models.pool.opening import open_model
from tests import zoo
from tests.lanes import few
from tests.models.trees import code, model, only
from tests.zoo.build import build_config, config_of

THETA = 77_777.0
YARN = {"rope_type": "yarn", "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
SCALINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "linear": {"rope_type": "linear", "type": "linear", "factor": 2.0},
    "yarn": YARN,
    "llama3": {
        "rope_type": "llama3",
        "type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "longrope": {
        "rope_type": "longrope",
        "type": "longrope",
        "short_factor": 1.0,
        "long_factor": 2.0,
        "short_mscale": 1.0,
        "long_mscale": 1.1,
        "original_max_position_embeddings": 16,
    },
}
NAMES = sorted(name for name, family in zoo.FAMILIES.items() if not family.module)
LOCAL_THETAS = ("rope_local_base_freq", "rope_local_theta", "swa_rope_theta")
OLD = ("rope_theta", "rope_scaling")
WITHOUT_ROPE = {
    *("gpt2", "gpt_bigcode", "jamba", "kimi_k3", "kimi_linear", "mamba", "mamba2", "nemotron_h"),
    "rwkv7",
}
PARAMETERS_ONLY = {"minimax_m3_vl", "qwen3_5", "qwen3_5_moe"}
BY_LAYER_TYPE = {"gemma4", "gemma4_text", "laguna", "mellum", "spark2_5"}
TOKENS = mx.random.randint(0, zoo.VOCAB_SIZE, (1, 20), key=mx.random.key(5))


def logits(config: dict[str, Any]) -> mx.array:
    return build_config(config)(TOKENS)


def rope_part(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration that has the keys of its text model."""
    part = config.get("text_config", config)
    return part


def with_keys(name: str, *absent: str, **keys: Any) -> dict[str, Any]:
    """Return the tiny configuration of an architecture with other keys."""
    config = copy.deepcopy(config_of(zoo.FAMILIES[name]))
    part = rope_part(config)
    for key in absent:
        part.pop(key, None)
    part.update(keys)
    return config


def older(name: str, scaling: dict[str, Any]) -> dict[str, Any]:
    """Return parameters in the keys that mlx-lm's class reads of itself."""
    config = with_keys(name, rope_theta=THETA, rope_scaling=scaling or None)
    part = rope_part(config)
    if "rope_parameters" in part:
        parameters = {"rope_type": "default", **scaling, "rope_theta": THETA}
        kept = part["rope_parameters"]
        if name in BY_LAYER_TYPE or all(isinstance(value, dict) for value in kept.values()):
            types = set(part["layer_types"])
            part["rope_parameters"] = {one: dict(parameters) for one in types}
        else:
            part["rope_parameters"] = {**kept, **parameters}
    elif name in BY_LAYER_TYPE | PARAMETERS_ONLY:
        parameters = {"rope_type": "default", **scaling, "rope_theta": THETA}
        part["rope_parameters"] = parameters
        if name in BY_LAYER_TYPE:
            part["rope_parameters"] = {one: dict(parameters) for one in part["layer_types"]}
        elif "partial_rotary_factor" in part:
            parameters["partial_rotary_factor"] = part["partial_rotary_factor"]
    if "original_max_position_embeddings" in scaling:
        part["original_max_position_embeddings"] = scaling["original_max_position_embeddings"]
    if name == "gpt_neox":
        part["rotary_emb_base"] = THETA
    if name == "openelm":
        part["rope_freq_constant"] = THETA
    for key in LOCAL_THETAS:
        part[key] = THETA
    return config


def newer(name: str, scaling: dict[str, Any]) -> dict[str, Any]:
    """Return the same parameters as transformers 5 writes them."""
    kept = rope_part(with_keys(name)).get("rope_parameters", {})
    flat = {key: value for key, value in kept.items() if not isinstance(value, dict)}
    parameters = {**flat, "rope_type": "default", **scaling, "rope_theta": THETA}
    parameters.pop("type", None)
    return with_keys(
        name,
        *OLD,
        "rotary_emb_base",
        "rope_freq_constant",
        rope_parameters=parameters,
        **dict.fromkeys(LOCAL_THETAS, THETA),
    )


def translated(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, **rope_overrides(config)}


def computes(new: dict[str, Any], old: dict[str, Any]) -> bool:
    """Whether the parameters of a configuration are read as those of one with older keys."""
    assert rope_reason(new) is None
    return mx.array_equal(logits(translated(new)), logits(old)).item()


def possible_logits(config: dict[str, Any]) -> mx.array | None:
    """Return the logits of a configuration, None where mlx-lm's class raises."""
    try:
        return logits(config)
    except Exception:  # noqa: BLE001 — its classes raise anything
        return None


@pytest.mark.parametrize("name", few(NAMES, "llama", "gemma3_text", "gpt_oss", "qwen3_next"))
def test_both_forms_compute_the_same_or_are_refused(name: str) -> None:
    unscaled: mx.array | None = None
    for kind, scaling in SCALINGS.items():
        old, new = older(name, scaling), newer(name, scaling)
        if rope_reason(new) is not None:
            assert rope_reason(old) is not None, kind
            continue
        expected, result = possible_logits(old), possible_logits(translated(new))
        if expected is None or result is None:
            assert expected is result, kind
            continue
        assert mx.array_equal(result, expected).item(), kind
        if kind == "none":
            unscaled = expected
        without = possible_logits(with_keys(name)) if kind == "none" else unscaled
        if without is not None:
            has_effect = not mx.array_equal(expected, without).item()
            assert has_effect == (name not in WITHOUT_ROPE), kind


def with_layers(name: str, full: dict[str, Any], sliding: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with parameters for each of two types of layer."""
    layers = {"full_attention": full, "sliding_attention": sliding}
    return with_keys(name, *OLD, *LOCAL_THETAS, *unread(name), rope_parameters=layers)


def unread(name: str) -> tuple[str, ...]:
    """Return the share of rotated dimensions, which all tiny configurations have, if not read."""
    return () if name == "mimo_v2_flash" else ("partial_rotary_factor",)


WINDOWS = {
    **dict.fromkeys(("gemma3", "gemma3_text", "gemma3n", "gear"), "rope_local_base_freq"),
    "plamo3": "rope_local_theta",
    "mimo_v2_flash": "swa_rope_theta",
}
"""Architectures with a second base, and the key that has it."""


@pytest.mark.parametrize("name", sorted(WINDOWS))
def test_a_base_for_windows_is_read_where_there_is_a_key_for_it(name: str) -> None:
    plain = {"rope_type": "default"}
    for full in ({**plain, "rope_theta": THETA}, {**SCALINGS["linear"], "rope_theta": THETA}):
        new = with_layers(name, full, {**plain, "rope_theta": 500.0})
        if rope_reason(new) is not None:
            assert full["rope_type"] == "linear"
            assert rope_reason(with_keys(name, rope_scaling=full)) is not None
            continue
        scaling = full if full["rope_type"] == "linear" else None
        keys = {"rope_theta": THETA, "rope_scaling": scaling, WINDOWS[name]: 500.0}
        assert computes(new, with_keys(name, *unread(name), **keys))
        assert not computes(new, with_keys(name, *unread(name), **{**keys, WINDOWS[name]: 900.0}))


def test_windows_without_scaling_are_read_where_the_architecture_scales_none() -> None:
    full, sliding = {**YARN, "rope_theta": THETA}, {"rope_type": "default", "rope_theta": THETA}
    new = with_layers("olmo3", full, sliding)
    assert computes(new, with_keys("olmo3", rope_theta=THETA, rope_scaling=YARN))


def test_lists_by_layer_are_written_for_the_architecture_that_has_them() -> None:
    full = {**YARN, "rope_theta": THETA, "partial_rotary_factor": 0.5}
    sliding = {"rope_type": "default", "rope_theta": 500.0}
    new = with_layers("step3p5", full, sliding)
    types = rope_part(new)["layer_types"]
    keys: dict[str, Any] = {
        "rope_theta": [THETA if one == "full_attention" else 500.0 for one in types],
        "partial_rotary_factors": [0.5 if one == "full_attention" else 1.0 for one in types],
        "rope_scaling": YARN,
        "yarn_only_types": ["full_attention"],
    }
    assert computes(new, with_keys("step3p5", **keys))


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt_oss", "olmo3", "cohere2"])
def test_other_bases_by_layer_are_refused(name: str) -> None:
    plain = {"rope_type": "default"}
    new = with_layers(name, {**plain, "rope_theta": THETA}, {**plain, "rope_theta": 500.0})
    assert code_of(new) == "model.rope"
    assert code_of(with_layers(name, plain, plain)) is None


@pytest.mark.parametrize("name", ["glm4", "phi", "stablelm", "nemotron", "gpt_neox", "qwen3_next"])
def test_the_share_of_rotated_dimensions_is_read(name: str) -> None:
    parameters = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    new = with_keys(name, *OLD, "partial_rotary_factor", "rotary_pct", rope_parameters=parameters)
    assert computes(new, with_keys(name, partial_rotary_factor=0.25, rotary_pct=0.25))
    assert not computes(new, with_keys(name))


@pytest.mark.parametrize("name", ["llama", "mixtral", "glm", "starcoder2"])
def test_a_share_that_would_be_ignored_is_refused(name: str) -> None:
    assert code_of(with_keys(name, partial_rotary_factor=0.25)) == "model.rope"
    parameters = {"rope_theta": THETA, "partial_rotary_factor": 0.25}
    assert code_of(with_keys(name, *OLD, rope_parameters=parameters)) == "model.rope"


def test_yarn_without_its_original_length_begins_at_that_of_the_config() -> None:
    short = {key: value for key, value in YARN.items() if key != "original_max_position_embeddings"}
    new = with_keys("llama", max_position_embeddings=16, rope_scaling=short)
    assert computes(new, with_keys("llama", max_position_embeddings=16, rope_scaling=YARN))


def code_of(config: dict[str, Any]) -> str | None:
    reason = rope_reason(config)
    return None if reason is None else reason.code


def test_a_model_of_the_newer_form_is_loaded_with_its_parameters(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(BUNDLED / "omlx-demo/target", folder, symlinks=False)
    expected = open_model(folder, "float32", trusted=False)[0](TOKENS)
    config = json.loads((folder / "config.json").read_text())
    theta = config.pop("rope_theta")
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    (folder / "config.json").write_text(json.dumps(config))
    assert mx.array_equal(open_model(folder, "float32", trusted=False)[0](TOKENS), expected).item()


def test_a_parameter_that_would_be_ignored_is_the_reason_in_the_list(tmp_path: Path) -> None:
    config = {"model_type": "mixtral", "rope_scaling": YARN}
    entry = only(model(tmp_path / "m", config))
    assert code(entry) == "model.rope"
    assert "yarn" in entry.reason.message


ODD: list[Any] = [None, 0, -1, True, "x", "0.5", 1e400, [], [1], [[1]], {}, {"a": {}}, {"type": 7}]
KEYS = (
    *("rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor", "layer_types"),
    *("head_dim", "hidden_size", "num_attention_heads", "max_position_embeddings", "text_config"),
)


@pytest.mark.parametrize("name", ["llama", "minimax", "gemma3_text", "step3p5", "gemma4_text"])
def test_odd_values_raise_nothing(name: str) -> None:
    rng = random.Random(11)
    for _ in range(1000):
        config: dict[str, Any] = {"model_type": name}
        for key in rng.sample(KEYS, 4):
            config[key] = copy.deepcopy(rng.choice(ODD))
        parameters = {key: rng.choice(ODD) for key in rng.sample((*KEYS, "factor", "rope_type"), 3)}
        layers = {"full_attention": parameters, "sliding_attention": rng.choice(ODD)}
        config["rope_parameters"] = rng.choice([parameters, layers, rng.choice(ODD)])
        rope_overrides(config)
        rope_reason(config)
        context_length(config, 0)
        longest_context(config, 0)
