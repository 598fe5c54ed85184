"""Inspection of model directories, and the reasons why some cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omlx.errors import Reason
from omlx.models.catalog.discovery import Folder, HubCache, scan_places
from omlx.models.catalog.reference import too_large
from omlx.models.catalog.registry import Status
from tests.models.trees import LLAMA, code, hub_model, index, inspected, model, only, shards


@pytest.mark.parametrize("files", [["model.safetensors"], shards(2)], ids=["one", "two"])
def test_a_broken_link_is_a_missing_file(tmp_path: Path, files: list[str]) -> None:
    snapshot = hub_model(tmp_path, "org/name", files=files)
    (snapshot / files[-1]).resolve().unlink()
    entry = scan_places([HubCache("hf-cache", tmp_path)]).entries[0]
    assert code(entry) == "model.shards_missing"
    assert entry.reason.params == {"missing": 1, "total": len(files), "first": files[-1]}


@pytest.mark.parametrize(
    ("config", "files", "reason"),
    [
        (LLAMA, [], "model.no_weights"),
        (LLAMA, ["pytorch_model.bin"], "model.foreign_weights"),
        (LLAMA, ["consolidated.safetensors"], "model.foreign_weights"),
        (LLAMA, ["llama.gguf"], "model.gguf_only"),
        (LLAMA, shards(3)[:2], "model.shards_missing"),
        ({}, ["model.safetensors"], "model.no_config"),
        ({}, ["adapter_config.json", "adapters.safetensors"], "model.adapter_only"),
        ({"architectures": ["X"]}, ["model.safetensors"], "model.no_type"),
        ({"model_type": "hal9000"}, ["model.safetensors"], "model.unsupported"),
        ({"model_type": ["llama"]}, ["model.safetensors"], "model.no_type"),
        ({**LLAMA, "model_file": "own.py"}, ["model.safetensors"], "model.remote_code"),
    ],
)
def test_an_unusable_folder_has_a_reason(
    tmp_path: Path, config: dict[str, Any], files: list[str], reason: str
) -> None:
    assert code(only(model(tmp_path / "m", config, files))) == reason


@pytest.mark.parametrize(
    ("sharded", "more", "size"),
    [
        (False, [], 10),
        (False, ["adapters.safetensors", "consolidated.safetensors"], 10),
        (True, [], 20),
        (True, ["model.safetensors", "consolidated.safetensors"], 20),
    ],
)
def test_the_size_counts_loaded_files(
    tmp_path: Path, sharded: bool, more: list[str], size: int
) -> None:
    names = shards(2) if sharded else ["model.safetensors"]
    folder = model(tmp_path / "m", files=[*names, *more])
    if sharded:
        index(folder, names)
    assert (only(folder).status, only(folder).size_bytes) == (Status.USABLE, size)


def test_unloaded_files_do_not_make_a_draft_too_large(tmp_path: Path) -> None:
    target = only(model(tmp_path / "big", files=shards(2)))
    draft = only(model(tmp_path / "small", files=["model.safetensors", "adapters.safetensors"]))
    assert too_large(target, draft) is None
    copy = only(model(tmp_path / "copy", files=shards(2)))
    beside = only(model(tmp_path / "more", files=[*shards(2), "adapters.safetensors"]))
    assert too_large(beside, copy) is not None


@pytest.mark.parametrize("strange", [5, {"a": 1}, True, [5, None]])
def test_a_config_of_odd_types_raises_nothing(tmp_path: Path, strange: object) -> None:
    names = ("architectures", "model_type", "text_config", "quantization", "speculators_model_type")
    for name in names:
        model(tmp_path / name, {**LLAMA, name: strange})
    for number, named in enumerate([strange, {"layer": strange}, {"layer": ["model.safetensors"]}]):
        folder = model(tmp_path / f"index-{number}")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    assert len(scan_places([Folder("models", tmp_path)]).entries) == len(names) + 3


@pytest.mark.parametrize("text", ["{", "[]", "", "\udcff"])
def test_a_config_that_is_no_object_is_a_reason(tmp_path: Path, text: str) -> None:
    folder = model(tmp_path / "m")
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert code(only(folder)) == "model.unreadable"


def test_shards_missing_from_the_index_are_counted(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", files=["model-a.safetensors"])
    index(folder, ["model-a.safetensors", "model-b.safetensors", "model-c.safetensors"])
    entry = only(folder)
    assert entry.reason.params == {"missing": 2, "total": 3, "first": "model-b.safetensors"}


def test_a_single_file_replaces_an_old_index(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    index(folder, shards(4))
    assert only(folder).status is Status.USABLE


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"model_type": "llama", "architectures": ["LlamaForCausalLMEagle"]}, "EAGLE"),
        ({"model_type": "gemma4", "dflash_config": {}}, "DFlash"),
        ({"model_type": "llama", "medusa_num_heads": 4}, "Medusa"),
        ({"model_type": "deepseek_v3", "architectures": ["DeepSeekV3ForCausalLMNextN"]}, "MTP"),
        ({"model_type": "gemma4_assistant"}, "MTP"),
    ],
)
def test_a_draft_head_that_is_not_supported_is_named(
    tmp_path: Path, config: dict[str, Any], kind: str
) -> None:
    entry = only(model(tmp_path / "m", config))
    assert entry.reason == Reason("model.head_only", {"kind": kind})
    assert entry.drafter is None


SIZES = {"hidden_size": 64, "vocab_size": 96}
SPECULATORS = {"speculators_model_type": "eagle3", "transformer_layer_config": SIZES}


@pytest.mark.parametrize(
    ("config", "drafter", "kind"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"], **SIZES}, "eagle", "EAGLE-3"),
        ({"architectures": ["X"], **SPECULATORS}, "eagle", "EAGLE-3"),
        ({"architectures": ["DFlashDraftModel"], "dflash_config": {}, **SIZES}, "block", "DFlash"),
        ({"dflash_config": {"projector_type": "dspark"}, **SIZES}, "block", "DSpark"),
        ({"model_type": "qwen3_5_mtp", "text_config": SIZES}, "mtp", "MTP"),
    ],
)
def test_a_trained_drafter_says_what_it_needs(
    tmp_path: Path, config: dict[str, Any], drafter: str, kind: str
) -> None:
    entry = only(model(tmp_path / "m", {"model_type": "qwen3", **config}))
    assert entry.drafter == drafter
    assert entry.reason == Reason("model.drafter", {"kind": kind, "hidden": 64, "vocab": 96})


@pytest.mark.parametrize("strange", [None, 3, "x", [], ["x"], {"a": 1}, True])
@pytest.mark.parametrize(
    "field",
    [
        *("dflash_config", "transformer_layer_config", "eagle_config", "target_layer_ids"),
        *("hidden_size", "vocab_size", "text_config"),
    ],
)
def test_a_strange_config_of_a_drafter_is_read(tmp_path: Path, field: str, strange: object) -> None:
    for name in ("LlamaForCausalLMEagle3", "DFlashDraftModel"):
        config = {"model_type": "qwen3", "architectures": [name], field: strange}
        entry = only(model(tmp_path / name, config))
        assert entry.drafter in (None, "eagle", "block")


@pytest.mark.parametrize(
    "files", [["pytorch_model.bin"], ["mtp.safetensors"], ["model.safetensors.part"], []]
)
def test_a_draft_head_is_recognised_with_any_weights(tmp_path: Path, files: list[str]) -> None:
    head = {"model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"]}
    assert code(only(model(tmp_path / "m", head, files))) == "model.drafter"


def test_a_model_with_an_mtp_layer_is_usable(tmp_path: Path) -> None:
    config = {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]}
    config |= {"num_nextn_predict_layers": 1}
    assert only(model(tmp_path / "m", config)).status is Status.USABLE


@pytest.mark.parametrize(
    ("config", "label"),
    [
        ({}, None),
        ({"quantization": {"bits": 4, "group_size": 64}}, "4-bit"),
        ({"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}}, "mxfp4"),
        ({"quantization_config": {"quant_method": "bitnet"}}, "bitnet"),
        ({"text_config": {"quantization": {"bits": 8, "group_size": 64}}}, "8-bit"),
    ],
)
def test_quantization_labels(tmp_path: Path, config: dict[str, Any], label: str | None) -> None:
    assert inspected(model(tmp_path / "m", {**LLAMA, **config})).quantization == label
