"""Reading weights: facts and dtype, and an error for each kind of damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models import llama, mistral3
from mlx_lm.utils import save_config

from omlx.catalog import catalog
from omlx.errors import ModelError
from omlx.models.catalog.config import check_counts
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.pool.load_weights import load, load_steps
from omlx.models.pool.opening import LoadProgress, open_model
from tests.models.breakage import (
    CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    Breakage,
    config,
    content,
    cut,
    missing,
    together,
)
from tests.models.trees import entry, with_tokenizer
from tests.refusals import refused

DEMO = BUNDLED / "omlx-demo/draft"
GENERATION = "generation_config.json"
FIRST, SECOND = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
TINY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-5,
    "vocab_size": 2048,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
    "eos_token_id": 7,
}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A bfloat16 llama of two layers in two shards, with the tokenizer of the demo models."""
    folder = with_tokenizer(tmp_path / "tiny")
    model = llama.Model(llama.ModelArgs.from_dict(TINY))
    model.set_dtype(mx.bfloat16)
    save(folder, model, TINY)
    return folder


def save(folder: Path, model: nn.Module, config: dict[str, Any]) -> None:
    tensors = tree_flatten(model.parameters())
    half = len(tensors) // 2
    mx.save_safetensors(str(folder / FIRST), dict(tensors[:half]))
    mx.save_safetensors(str(folder / SECOND), dict(tensors[half:]))
    save_config(dict(config), folder / "config.json")


def types(model: Any) -> set[mx.Dtype]:
    return {array.dtype for _, array in tree_flatten(model.parameters())}


def test_facts_of_a_loaded_model(tiny: Path) -> None:
    sampling = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    content(GENERATION, json.dumps({**sampling, "eos_token_id": [9, 11], "do_sample": True}))(tiny)
    loaded = load(entry(tiny), "auto")
    assert loaded.context_length == 512
    assert loaded.vocab_size == 2048
    assert {7, 9, 11} <= loaded.stop_ids
    assert loaded.sampling == sampling
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("def f(x):")) == "def f(x):"


def test_a_model_that_does_not_sample_is_greedy(tiny: Path) -> None:
    content(GENERATION, '{"do_sample": false, "temperature": 0.6}')(tiny)
    assert load(entry(tiny), "auto").sampling == {"temperature": 0.0}


def test_progress_counts_the_bytes_of_all_weights(tiny: Path) -> None:
    seen = [step for step in load_steps(entry(tiny), "bfloat16") if step is not None]
    size_bytes = load(entry(tiny), "bfloat16").size_bytes
    assert (seen[0].done, seen[-1].done) == (0, size_bytes)
    assert {progress.total for progress in seen} == {size_bytes}


def test_dense_weights_are_cast_for_a_cpu_and_on_request(tiny: Path) -> None:
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    assert types(load(entry(tiny), "auto").model) == {mx.float32 if on_cpu else mx.bfloat16}
    assert types(load(entry(tiny), "float16").model) == {mx.float16}


def test_quantized_weights_stay_quantized(tiny: Path) -> None:
    model = llama.Model(llama.ModelArgs.from_dict(TINY))
    model.set_dtype(mx.bfloat16)
    nn.quantize(model, group_size=32, bits=4)
    save(tiny, model, {**TINY, "quantization": {"group_size": 32, "bits": 4}})
    assert types(load(entry(tiny), "float32").model) == {mx.uint32, mx.bfloat16}


def test_a_multimodal_wrapper_is_loaded_as_text(tiny: Path) -> None:
    inner = {**TINY, "head_dim": 32}
    config = {"model_type": "mistral3", "text_config": inner}
    model = mistral3.Model(mistral3.ModelArgs.from_dict(config))
    save(tiny, model, config)
    loaded = load(entry(tiny), "float32")
    assert (loaded.context_length, loaded.vocab_size) == (512, 2048)
    assert 7 in loaded.stop_ids


def test_other_work_can_run_between_two_portions(tiny: Path) -> None:
    steps = load_steps(entry(tiny), "auto")
    assert next(steps) == LoadProgress(0, load(entry(tiny), "auto").size_bytes)
    steps.close()


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1234\n"
OWN = content("own.py", "raise SystemExit('this must not run')")


@pytest.mark.parametrize(
    ("damage", "code", "named"),
    [
        (together(missing(FIRST), missing(SECOND)), "model.no_weights", "model*.safetensors"),
        (cut(SECOND, -100), "model.truncated", SECOND),
        (cut(SECOND, 20), "model.not_safetensors", SECOND),
        (content(FIRST, b""), "model.not_safetensors", FIRST),
        (content(FIRST, LFS), "model.lfs_pointer", "git lfs pull"),
        (missing(SECOND), "model.build", "Missing"),
        (config(hidden_size=128), "model.build", "shape"),
        (content(CONFIG, '{"model_type": "llama"}'), "model.build", "hidden_size"),
        (config(model_type="hal9000"), "model.unsupported", "hal9000"),
        (together(OWN, config(model_file="own.py")), "model.remote_code", "own.py"),
        (missing(CONFIG), "model.no_config", "config.json"),
        (content(CONFIG, "{"), "model.config_unreadable", "config.json"),
        (content(GENERATION, "[]"), "model.config_unreadable", "generation_config.json"),
        (content(TOKENIZER, '{"model": {}}'), "model.tokenizer", "tokenizer"),
        (together(missing(TOKENIZER), missing(TOKENIZER_CONFIG)), "model.tokenizer", "tokenizer"),
    ],
)
def test_damage_has_a_code(tiny: Path, damage: Breakage, code: str, named: str) -> None:
    damage(tiny)
    with refused(ModelError, code, named, model="tiny"):
        load(entry(tiny), "auto")
    assert code in catalog()


def test_a_wider_embedding_is_cut_to_the_tokenizer(tiny: Path) -> None:
    model = llama.Model(llama.ModelArgs.from_dict({**TINY, "vocab_size": 2112}))
    save(tiny, model, {**TINY, "vocab_size": 2112})
    assert load(entry(tiny), "auto").vocab_size == 2048


def test_extra_weights_are_refused(tiny: Path) -> None:
    mx.save_safetensors(str(tiny / "model-extra.safetensors"), {"extra.weight": mx.zeros((2, 2))})
    with pytest.raises(ModelError, match=r"extra\.weight"):
        load(entry(tiny), "auto")


@pytest.mark.parametrize("key", ["num_hidden_layers", "n_layer", "num_layers", "num_loops"])
def test_more_layers_than_tensors_are_refused(key: str) -> None:
    with refused(ModelError, "model.config_counts"):
        check_counts({"text_config": {key: 1000}}, 300)


def test_other_numbers_of_a_config_may_exceed_the_tensors() -> None:
    sizes = {"vocab_size_per_layer_input": 262_144, "hidden_size_per_layer_input": 256}
    check_counts({"num_hidden_layers": 35, "hidden_size": 2048, "vocab_size": 262_400, **sizes}, 30)


def test_random_weights_that_are_replaced_leave_no_graph(tmp_path: Path) -> None:
    """Building a model draws weights lazily; the generator's state must not keep all draws."""
    graphs = []
    for _ in range(2):
        open_model(DEMO, "float32", trusted=False)
        graph = tmp_path / "state.dot"
        mx.export_to_dot(str(graph), *mx.random.state)
        graphs.append(len(graph.read_text()))
    assert graphs[1] == graphs[0] < 1000
