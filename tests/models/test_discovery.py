"""Models are found where people have them, the first place wins, and whatever is left out says why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from omlx.catalog import catalog
from omlx.errors import ModelError, NotFound
from omlx.models.catalog.discovery import BUNDLED, Registry, discover, scan_places
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.models.catalog.inspect_checkpoint import inspect_checkpoint
from omlx.models.catalog.places import Folder, HubCache
from omlx.models.package.compatibility import too_large
from omlx.settings.schema import Settings
from tests.models.trees import LLAMA, hub_model, index, model, shards


def ids(registry: Registry) -> dict[str, str]:
    return {entry.id: entry.reason.code if entry.reason else "usable" for entry in registry.entries}


def only(folder: Path) -> ModelEntry:
    (entry,) = scan_places([Folder("models", folder)]).entries
    return entry


def code(entry: ModelEntry) -> str:
    assert entry.status is Status.SKIPPED
    assert entry.reason is not None
    assert entry.reason.code in catalog()
    return entry.reason.code


def test_a_folder_of_models_one_and_two_deep_and_through_links(tmp_path: Path) -> None:
    model(tmp_path / "models/plain")
    model(tmp_path / "models/org/two-deep")
    model(tmp_path / "elsewhere/linked")
    model(tmp_path / "models/a/b/too-deep")
    model(tmp_path / "models/.hidden/one")
    (tmp_path / "models/org/notes").mkdir()
    (tmp_path / "models/readme.txt").write_text("not a model", encoding="utf-8")
    (tmp_path / "models/org/linked").symlink_to(tmp_path / "elsewhere/linked")
    registry = scan_places([Folder("models", tmp_path / "models")])
    assert ids(registry) == {"plain": "usable", "org/linked": "usable", "org/two-deep": "usable"}
    assert registry.find("org/two-deep").size_bytes == 10


def test_a_model_given_by_itself(tmp_path: Path) -> None:
    assert only(model(tmp_path / "mine")).id == "mine"
    assert only(hub_model(tmp_path, "org/name")).id == "org/name"


def test_places_that_are_not_there_or_not_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert scan_places(
        [
            Folder("a", tmp_path / "none"),
            Folder("b", tmp_path / "file"),
            HubCache("c", tmp_path / "x"),
        ]
    ) == (Registry())


def test_the_hugging_face_cache_with_links_partial_downloads_and_other_repositories(
    tmp_path: Path,
) -> None:
    hub_model(tmp_path, "org/whole")
    hub_model(tmp_path, "org/name--with--dashes")
    hub_model(tmp_path, "gpt2")
    hub_model(tmp_path, "org/half", files=[], unfinished=2)
    hub_model(tmp_path, "org/again", unfinished=1)
    hub_model(tmp_path, "org/pinned", main=False)
    (tmp_path / "datasets--org--text/snapshots").mkdir(parents=True)
    (tmp_path / ".locks/models--org--whole").mkdir(parents=True)
    (tmp_path / "version.txt").write_text("1", encoding="utf-8")
    registry = scan_places([HubCache("hf-cache", tmp_path)])
    assert ids(registry) == {
        "gpt2": "usable",
        "org/whole": "usable",
        "org/name--with--dashes": "usable",
        "org/again": "usable",
        "org/half": "model.half_download",
        "org/pinned": "model.no_main",
    }


def test_a_link_to_a_blob_that_is_gone_is_a_missing_file(tmp_path: Path) -> None:
    snapshot = hub_model(tmp_path, "org/name", files=shards(2))
    (snapshot / shards(2)[1]).resolve().unlink()
    assert code(scan_places([HubCache("hf-cache", tmp_path)]).entries[0]) == "model.shards_missing"


def test_a_link_to_weights_that_are_gone_is_a_missing_file_where_there_is_only_one(
    tmp_path: Path,
) -> None:
    snapshot = hub_model(tmp_path, "org/name")
    (snapshot / "model.safetensors").resolve().unlink()
    entry = scan_places([HubCache("hf-cache", tmp_path)]).entries[0]
    assert code(entry) == "model.shards_missing"
    assert entry.reason is not None
    assert entry.reason.params == {"missing": 1, "total": 1, "first": "model.safetensors"}


def test_zeros_where_the_name_of_a_snapshot_ought_to_be(tmp_path: Path) -> None:
    snapshot = hub_model(tmp_path, "org/name")
    (snapshot.parent.parent / "refs/main").write_bytes(bytes(40))
    assert ids(scan_places([HubCache("hf-cache", tmp_path)])) == {"org/name": "model.no_main"}


def test_an_lm_studio_folder(tmp_path: Path) -> None:
    model(tmp_path / "mlx-community/whole", files=shards(2))
    model(tmp_path / "lmstudio-community/Llama-GGUF", config={}, files=["Llama-Q4_K_M.gguf"])
    model(tmp_path / "mlx-community/loading", files=["downloading_model.safetensors.part"])
    assert ids(scan_places([Folder("lmstudio", tmp_path)])) == {
        "mlx-community/whole": "usable",
        "lmstudio-community/Llama-GGUF": "model.gguf_only",
        "mlx-community/loading": "model.half_download",
    }


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
def test_a_folder_that_cannot_be_loaded_says_why(
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
def test_its_size_is_that_of_what_is_loaded(
    tmp_path: Path, sharded: bool, more: list[str], size: int
) -> None:
    names = shards(2) if sharded else ["model.safetensors"]
    folder = model(tmp_path / "m", files=[*names, *more])
    if sharded:
        index(folder, names)
    assert (only(folder).status, only(folder).size_bytes) == (Status.USABLE, size)


def test_no_draft_is_too_large_for_what_lies_beside_it(tmp_path: Path) -> None:
    target = only(model(tmp_path / "big", files=shards(2)))
    draft = only(model(tmp_path / "small", files=["model.safetensors", "adapters.safetensors"]))
    assert too_large(target, draft) is None
    copy = only(model(tmp_path / "copy", files=shards(2)))
    beside = only(model(tmp_path / "more", files=[*shards(2), "adapters.safetensors"]))
    assert too_large(beside, copy) is not None


@pytest.mark.parametrize("strange", [5, {"a": 1}, True, [5, None]])
def test_a_config_of_strange_types_stops_nobody(tmp_path: Path, strange: object) -> None:
    names = ("architectures", "model_type", "text_config", "quantization", "speculators_model_type")
    for name in names:
        model(tmp_path / name, {**LLAMA, name: strange})
    for number, named in enumerate([strange, {"layer": strange}, {"layer": ["model.safetensors"]}]):
        folder = model(tmp_path / f"index-{number}")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    assert len(scan_places([Folder("models", tmp_path)]).entries) == len(names) + 3


def test_folders_whose_names_are_no_text_are_left_out(tmp_path: Path) -> None:
    model(tmp_path / "org/m")
    try:
        (tmp_path / os.fsdecode(b"caf\xe9")).mkdir()
    except OSError:
        pytest.skip("this file system knows text only")
    model(tmp_path / os.fsdecode(b"caf\xe9"))
    assert ids(scan_places([Folder("models", tmp_path)])) == {"org/m": "usable"}


@pytest.mark.parametrize("text", ["{", "[]", "", "\udcff"])
def test_a_config_that_is_not_an_object_is_a_reason_not_an_exception(
    tmp_path: Path, text: str
) -> None:
    folder = model(tmp_path / "m")
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert code(only(folder)) == "model.unreadable"


def test_shards_that_the_index_promises(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", files=["model-a.safetensors"])
    index(folder, ["model-a.safetensors", "model-b.safetensors", "model-c.safetensors"])
    entry = only(folder)
    assert entry.reason is not None
    assert entry.reason.params == {"missing": 2, "total": 3, "first": "model-b.safetensors"}


def test_an_index_of_weights_that_were_replaced_by_one_file_does_not_count(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    index(folder, shards(4))
    assert only(folder).status is Status.USABLE


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"]}, "EAGLE"),
        (
            {"model_type": "qwen3", "architectures": ["DFlashDraftModel"], "dflash_config": {}},
            "DFlash",
        ),
        ({"model_type": "llama", "medusa_num_heads": 4}, "Medusa"),
        ({"model_type": "qwen3_5_mtp", "architectures": ["Qwen3_5MTP"]}, "MTP"),
        ({"model_type": "deepseek_v3", "architectures": ["DeepSeekV3ForCausalLMNextN"]}, "MTP"),
        ({"model_type": "gemma4_assistant"}, "MTP"),
        ({"architectures": ["X"], "speculators_model_type": "eagle3"}, "EAGLE"),
    ],
)
def test_a_draft_head_is_recognised_from_its_config(
    tmp_path: Path, config: dict[str, Any], kind: str
) -> None:
    entry = only(model(tmp_path / "m", config))
    assert code(entry) == "model.head_only"
    assert entry.reason is not None
    assert entry.reason.params == {"kind": kind}


@pytest.mark.parametrize(
    "files", [["pytorch_model.bin"], ["mtp.safetensors"], ["model.safetensors.part"], []]
)
def test_a_draft_head_is_one_whatever_its_weights_are_in(tmp_path: Path, files: list[str]) -> None:
    head = {"model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"]}
    assert code(only(model(tmp_path / "m", head, files))) == "model.head_only"


def test_a_model_with_an_mtp_layer_of_its_own_is_a_model(tmp_path: Path) -> None:
    config = {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_nextn_predict_layers": 1,
    }
    assert only(model(tmp_path / "m", config)).status is Status.USABLE


def test_a_type_that_mlx_lm_knows_by_another_name_is_supported(tmp_path: Path) -> None:
    assert only(model(tmp_path / "m", {"model_type": "qwen2_5_vl"})).status is Status.USABLE


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
def test_how_weights_are_quantized(
    tmp_path: Path, config: dict[str, Any], label: str | None
) -> None:
    assert (
        inspect_checkpoint("m", model(tmp_path / "m", {**LLAMA, **config}), "x").quantization
        == label
    )


def test_the_first_place_wins_and_the_others_are_shadowed(tmp_path: Path) -> None:
    first, second = model(tmp_path / "one/org/m"), model(tmp_path / "two/org/m")
    registry = scan_places([Folder("one", tmp_path / "one"), Folder("two", tmp_path / "two")])
    assert [entry.status for entry in registry.entries] == [Status.USABLE, Status.SHADOWED]
    assert registry.find("org/m").path == first
    assert registry.entries[1].path == second
    assert registry.entries[1].reason is not None
    assert registry.entries[1].reason.params == {"by": str(first), "source": "one"}


def test_half_a_download_does_not_hide_a_whole_model_in_a_later_place(tmp_path: Path) -> None:
    model(tmp_path / "one/org/m", files=["model.safetensors.part"])
    whole = model(tmp_path / "two/org/m")
    registry = scan_places([Folder("one", tmp_path / "one"), Folder("two", tmp_path / "two")])
    assert [entry.status for entry in registry.entries] == [Status.SKIPPED, Status.USABLE]
    assert registry.find("org/m").path == whole


def test_one_folder_reached_through_two_places_is_listed_once(tmp_path: Path) -> None:
    model(tmp_path / "one/org/m")
    assert (
        len(scan_places([Folder("a", tmp_path / "one"), Folder("b", tmp_path / "one")]).entries)
        == 1
    )


def test_names(tmp_path: Path) -> None:
    for name in ("a/same", "b/same", "a/alone", "b/broken", "c/taken"):
        model(tmp_path / name, files=[] if name == "b/broken" else ["model.safetensors"])
    registry = scan_places([Folder("models", tmp_path)])
    assert registry.find("alone").id == "a/alone"
    assert registry.find("b/same").id == "b/same"
    with pytest.raises(NotFound) as ambiguous:
        registry.find("same")
    assert (ambiguous.value.code, ambiguous.value.params["ids"]) == (
        "model.ambiguous",
        "a/same, b/same",
    )
    with pytest.raises(ModelError) as broken:
        registry.find("broken")
    assert broken.value.code == "model.no_weights"


@pytest.mark.parametrize(
    "name", ["", "/", "..", "../outside", "models/../outside", "a/alone/", "A/ALONE", "a\\alone"]
)
def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    model(tmp_path / "outside")
    model(tmp_path / "models/a/alone")
    with pytest.raises(NotFound):
        scan_places([Folder("models", tmp_path / "models")]).find(name)


def test_all_places_in_order_each_can_be_switched_off(tmp_path: Path) -> None:
    for where in ("given", "home/models", ".lmstudio/models"):
        model(tmp_path / where / "org" / where.partition("/")[0].strip("."))
    hub_model(tmp_path / ".cache/huggingface/hub", "org/cached")
    settings = Settings(model_dir=(tmp_path / "given",), home=tmp_path / "home")
    environ = {"HOME": str(tmp_path)}
    found = [entry.id for entry in discover(settings, environ).entries if entry.source != "bundled"]
    assert found == ["org/given", "org/home", "org/lmstudio", "org/cached"]
    off = Settings(
        home=tmp_path / "home", home_models=False, lmstudio=False, hf_cache=False, bundled=False
    )
    assert discover(off, environ).entries == ()


@pytest.mark.parametrize(
    ("variable", "where"),
    [
        ("HF_HUB_CACHE", "."),
        ("HUGGINGFACE_HUB_CACHE", "."),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HOME", ".cache/huggingface/hub"),
    ],
)
def test_where_the_hugging_face_cache_is(tmp_path: Path, variable: str, where: str) -> None:
    hub_model(tmp_path / "there" / where, "org/cached")
    environ = {"HOME": str(tmp_path / "nobody"), variable: str(tmp_path / "there")}
    settings = Settings(home=tmp_path / "home", bundled=False)
    assert ids(discover(settings, environ)) == {"org/cached": "usable"}


def test_where_it_is_may_be_said_with_other_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_model(tmp_path / "disk/hub", "org/cached")
    monkeypatch.setenv("DISK", str(tmp_path / "disk"))
    settings = Settings(home=tmp_path / "home", bundled=False, lmstudio=False)
    assert ids(discover(settings, {"HF_HOME": "$DISK"})) == {"org/cached": "usable"}
    assert discover(settings, {"HF_HOME": "~nobody-is-called-so/hf"}).entries == ()


def test_bundled_models_come_last(tmp_path: Path) -> None:
    model(tmp_path / "omlx-demo/target")
    registry = discover(Settings(model_dir=(tmp_path,), home=tmp_path), {"HOME": str(tmp_path)})
    assert registry.find("omlx-demo/target").source == "model-dir"
    assert {entry.id for entry in registry.usable if entry.source == "bundled"} <= {
        f"omlx-demo/{folder.name}" for folder in (BUNDLED / "omlx-demo").iterdir()
    }


def test_the_home_of_another_program_is_read_and_nothing_else(tmp_path: Path) -> None:
    model(tmp_path / "home/models/org/m")
    (tmp_path / "home/settings.json").write_bytes(b'{"server": {"port": 1}}\r\n')
    (tmp_path / "home/stats.db").write_bytes(bytes(range(256)))
    before = {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    discover(Settings(home=tmp_path / "home"), {"HOME": str(tmp_path)}).find("org/m")
    after = {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    assert after == before


def test_looking_for_models_does_not_import_mlx() -> None:
    program = "import sys, json, omlx.models.catalog.discovery; print(json.dumps([m for m in sys.modules if m.startswith('mlx')]))"
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert json.loads(shown.stdout) == []
