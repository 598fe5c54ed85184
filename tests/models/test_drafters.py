"""Trained drafters on disk: published layouts are read as they were, others name their fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from omlx.errors import ModelError, Reason
from omlx.machine import extra_command
from omlx.models.catalog import drafters
from omlx.models.catalog.drafters import (
    drafter_mismatch,
    head_directory,
    inner_layers,
    own_head,
)
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.head import head_drafter, open_head
from tests import zoo
from tests.engine.harness import model
from tests.models.heads import in_shards, same, save_target
from tests.zoo.borrowed import CONFIGS as BORROWED
from tests.zoo.family import SMALL

pytest.importorskip("mlx_vlm")

from omlx.models.pool.borrowed_drafters import BorrowedHead
from tests.engine.borrowed import (
    CONFIGS,
    GLM,
    HEADS,
    INNER,
    LAYER,
    NEMOTRON,
    random_head,
    weights_of,
)
from tests.models.trees import inspected
from tests.refusals import refused

TARGETS = {**BORROWED, "nemotron_h": NEMOTRON, "glm_moe_dsa": GLM}


def save(folder: Path, config: dict[str, Any], tensors: dict[str, mx.array]) -> ModelEntry:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    return inspected(folder)


def read(entry: ModelEntry, family: str = "llama") -> BorrowedHead:
    head = open_head(head_directory(entry), model(family))
    return head


@pytest.fixture
def target(tmp_path: Path) -> ModelEntry:
    save_target(tmp_path / "target", "llama")
    return inspected(tmp_path / "target")


@pytest.mark.parametrize("kind", CONFIGS)
def test_directories_are_read_as_they_were(tmp_path: Path, target: ModelEntry, kind: str) -> None:
    written = random_head(kind, "llama")
    entry = save(tmp_path / kind, CONFIGS[kind], weights_of(written.module))
    assert entry.drafter == written.kind
    assert drafter_mismatch(target, entry) is None
    found = read(entry)
    assert found.layers == written.layers
    assert same(weights_of(found.module), weights_of(written.module))


@pytest.mark.parametrize("family", HEADS)
def test_heads_of_other_families_are_read_as_they_were(tmp_path: Path, family: str) -> None:
    written = random_head("mtp", family)
    entry = save(tmp_path / "head", HEADS[family], weights_of(written.module))
    target = save(tmp_path / "target", TARGETS[family], {})
    assert drafter_mismatch(target, entry) is None
    found = read(entry, family)
    assert (found.kind, found.layers) == ("mtp", written.layers)
    assert same(weights_of(found.module), weights_of(written.module))


def shards_with_a_head(folder: Path, family: str, *without: str) -> ModelEntry:
    """Save a target's folder: one shard with a tensor and a head by published names."""
    tensors = in_shards(family, weights_of(random_head("mtp", family).module))
    kept = {name: tensor for name, tensor in tensors.items() if not name.endswith(without)}
    return save(folder, TARGETS[family], {"model.norm.weight": mx.ones(64), **kept})


@pytest.mark.parametrize("family", HEADS)
def test_heads_in_the_shards_of_their_target_are_read_as_they_were(
    tmp_path: Path, family: str
) -> None:
    files = own_head(shards_with_a_head(tmp_path / "target", family))
    found, written = open_head(files, model(family)), random_head("mtp", family)
    assert (found.kind, found.layers) == ("mtp", written.layers)
    assert same(weights_of(found.module), weights_of(written.module))
    assert files.nbytes == sum(tensor.nbytes for tensor in weights_of(written.module).values())


@pytest.mark.parametrize(
    "family",
    ["deepseek_v4"]
    + [pytest.param(name, marks=pytest.mark.slow) for name in HEADS if name[0] != "d"],
)
@pytest.mark.parametrize("lost", ["norm.weight", "experts.2.down_proj.weight"])
def test_half_a_head_names_what_is_missing(tmp_path: Path, family: str, lost: str) -> None:
    lost = lost.replace("down_proj", "w2") if family == "deepseek_v4" else lost
    files = own_head(shards_with_a_head(tmp_path / "target", family, lost))
    with refused(ModelError, "spec.off.head_weights", lost.split(".")[0]):
        open_head(files, model(family))


def test_heads_without_a_proven_class_are_named(tmp_path: Path) -> None:
    """Inkling's have blocks with caches of their own, of which each draft reads another."""
    for name in ("inkling", "hy_v4"):
        config = {"model_type": f"{name}_mtp", "text_config": SMALL}
        entry = save(tmp_path / name, config, {"norm.weight": mx.ones(64)})
        assert entry.drafter == "mtp"
        with refused(ModelError, "spec.off.head_unsupported", model_type="inkling"):
            open_head(head_directory(entry), model("inkling"))


def test_a_target_without_a_head_in_its_shards_has_none(tmp_path: Path) -> None:
    entry = save(tmp_path / "target", TARGETS["glm5_next"], {"model.norm.weight": mx.ones(64)})
    assert own_head(entry) == Reason("spec.off.no_head")


def test_eagle_as_its_authors_publish_it(tmp_path: Path, target: ModelEntry) -> None:
    """The layer is called midlayer; ids of layers and the embedding are the target's."""
    written = random_head("eagle", "llama")
    tensors = {
        name.replace("layers.0.", "midlayer."): tensor
        for name, tensor in weights_of(written.module).items()
    }
    tensors["t2d"] = mx.zeros((zoo.VOCAB_SIZE,), mx.bool_)
    config = {**LAYER, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 40}
    entry = save(tmp_path / "eagle", config, tensors)
    assert drafter_mismatch(target, entry) is None
    found = read(entry)
    assert same(weights_of(found.module), weights_of(written.module))
    assert found.layers == (1, 0, 0)  # 2, 3 // 2 and 3 - 3, counted from the embedding
    assert inner_layers(config, 32) == (1, 15, 28)


def test_eagle_with_an_embedding_of_its_own_uses_the_targets(tmp_path: Path) -> None:
    written = weights_of(random_head("eagle", "llama").module)
    embedding = {"embed_tokens.weight": mx.ones((zoo.VOCAB_SIZE, 64))}
    entry = save(tmp_path / "shared", CONFIGS["eagle"], written | embedding)
    assert same(weights_of(read(entry).module), written)
    trained = {**CONFIGS["eagle"], "embed_requires_grad": True}
    entry = save(tmp_path / "trained", trained, written | embedding)
    assert same(weights_of(read(entry).module), written | embedding)


def test_eagle_of_a_scaled_context_has_scaled_positions(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config = {**CONFIGS["eagle"], "transformer_layer_config": {**LAYER, "rope_scaling": scaling}}
    written = weights_of(random_head("eagle", "llama").module)
    module: Any = read(save(tmp_path / "eagle", config, written)).module
    assert type(module.layers[0].self_attn.rope).__name__ == "Llama3RoPE"


@pytest.mark.parametrize("kind", ["eagle", "dspark"])
@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_directories(tmp_path: Path, kind: str, bits: int) -> None:
    written = random_head(kind, "llama")

    def divisible(path: str, module: nn.Module) -> bool:
        return hasattr(module, "to_quantized") and module.weight.shape[-1] % 32 == 0

    nn.quantize(written.module, group_size=32, bits=bits, class_predicate=divisible)
    config = {**CONFIGS[kind], "quantization": {"group_size": 32, "bits": bits}}
    found = read(save(tmp_path / kind, config, weights_of(written.module)))
    assert same(weights_of(found.module), weights_of(written.module))


def changed(kind: str, **values: Any) -> dict[str, Any]:
    return {**CONFIGS[kind], **values}


DEEP = {"deepest": 33, "layers": 3}
UNFIT: dict[str, tuple[dict[str, Any], tuple[str, str, str] | None]] = {
    "hidden size": (changed("eagle", target_hidden_size=128), ("hidden_size", "128", "64")),
    "vocabulary": (
        changed("eagle", transformer_layer_config={**LAYER, "vocab_size": 50}),
        ("vocab_size", "50", "96"),
    ),
    "inner layers": (changed("eagle", eagle_aux_hidden_state_layer_ids=[1, 2, 33]), None),
    "block's vocabulary": (changed("dflash", vocab_size=50), ("vocab_size", "50", "96")),
    "number of layers": (
        changed("dflash", dflash_config={**INNER, "num_target_layers": 36}),
        ("num_hidden_layers", "36", "3"),
    ),
}


@pytest.mark.parametrize("how", UNFIT)
def test_one_for_another_target_says_what_would_fit(
    tmp_path: Path, target: ModelEntry, how: str
) -> None:
    config, values = UNFIT[how]
    code, params = "draft.unfit.layers", DEEP
    if values is not None:
        code = "draft.unfit.head"
        params = dict(zip(("field", "wanted", "found"), values, strict=True))
    reason = drafter_mismatch(target, save(tmp_path / "other", config, {}))
    assert reason == Reason(code, {"draft": "other", **params})
    assert all(str(value) in reason.message for value in params.values())


def test_without_mlx_vlm_the_extra_is_named(
    tmp_path: Path, target: ModelEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafters, "find_spec", lambda name: None)
    entry = save(tmp_path / "eagle", CONFIGS["eagle"], {})
    reason = drafter_mismatch(target, entry)
    command = extra_command("vision")
    assert reason == Reason("draft.unfit.extra", {"draft": "eagle", "command": command})
    assert entry.reason.code == "model.drafter_extra"
    assert command in entry.reason.message
    own = own_head(shards_with_a_head(tmp_path / "own", "nemotron_h"))
    assert own == Reason("draft.unfit.extra", {"draft": "MTP", "command": command})


BROKEN: dict[str, tuple[Callable[[dict[str, mx.array]], Any], str]] = {
    "missing": (lambda tensors: tensors.pop("fc.weight"), "fc.weight"),
    "extra": (lambda tensors: tensors.update({"layers.7.x": mx.zeros(3)}), "layers.7.x"),
    "shape": (lambda tensors: tensors.update({"fc.weight": mx.zeros((4, 8))}), "(4, 8)"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_weights_that_do_not_fit_are_named(tmp_path: Path, how: str) -> None:
    change, said = BROKEN[how]
    tensors = weights_of(random_head("eagle", "llama").module)
    change(tensors)
    with refused(ModelError, "spec.off.head_weights", said):
        read(save(tmp_path / "eagle", CONFIGS["eagle"], tensors))


def test_configs_that_mlx_vlm_refuses_are_named(tmp_path: Path) -> None:
    tensors = weights_of(random_head("dspark", "llama").module)
    entry = save(tmp_path / "dspark", changed("dspark", hidden_act="gelu"), tensors)
    with refused(ModelError, "spec.off.head_weights", "silu"):
        read(entry)


@pytest.mark.parametrize("key", ["model_file", "auto_map"])
def test_code_in_a_drafters_folder_does_not_run(tmp_path: Path, key: str) -> None:
    written = random_head("eagle", "llama")
    config = changed(
        "eagle", **{key: "code.py" if key == "model_file" else {"AutoModel": "code.M"}}
    )
    entry = save(tmp_path / "eagle", config, weights_of(written.module))
    (tmp_path / "eagle/code.py").write_text("raise SystemExit")
    assert entry.drafter == "eagle"
    assert same(weights_of(read(entry).module), weights_of(written.module))


def test_ids_beyond_the_targets_vocabulary_are_refused() -> None:
    head = random_head("eagle", "llama")
    module: Any = head.module
    module.d2t = module.d2t + 60
    made = head_drafter("eagle", model("llama"), zoo.VOCAB_SIZE, head)
    assert made.code == "spec.off.head_weights"


def test_a_target_that_computes_more_behind_its_layers_is_refused() -> None:
    head = random_head("eagle", "llama")
    made = head_drafter("eagle", model("cohere"), zoo.VOCAB_SIZE, head)
    assert made == Reason("spec.off.hidden", {"model": "cohere"})
