"""Discovery: places in order of precedence, and the registry of what they hold."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from omlx.errors import ModelError, NotFound, Reason
from omlx.models.catalog.discovery import BUNDLED, Folder, HubCache, discover, scan_places
from omlx.models.catalog.registry import Registry, Status
from omlx.settings.schema import Settings
from tests.models.trees import hub_model, ids, model, only, shards
from tests.refusals import refused


def test_a_folder_of_models_up_to_three_deep_and_through_links(tmp_path: Path) -> None:
    model(tmp_path / "models/plain")
    model(tmp_path / "models/org/two-deep")
    model(tmp_path / "elsewhere/linked")
    model(tmp_path / "models/org/family/three-deep")
    model(tmp_path / "models/a/b/c/too-deep")
    model(tmp_path / "models/.hidden/one")
    (tmp_path / "models/org/notes").mkdir()
    (tmp_path / "models/readme.txt").write_text("not a model", encoding="utf-8")
    (tmp_path / "models/org/linked").symlink_to(tmp_path / "elsewhere/linked")
    registry = scan_places([Folder("models", tmp_path / "models")])
    assert ids(registry) == dict.fromkeys(
        ["plain", "org/linked", "org/two-deep", "org/family/three-deep"], "usable"
    )
    assert registry.get_usable("org/two-deep").size_bytes == 10


def test_models_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = ["2", "model", "model-1", "model-1b", "model-2", "model-10", "model-100", "other"]
    for name in reversed(names):
        model(tmp_path / "models/org" / name)
    registry = scan_places([Folder("models", tmp_path / "models")])
    assert [entry.name for entry in registry.entries] == names


def test_a_place_may_be_a_model_itself(tmp_path: Path) -> None:
    assert only(model(tmp_path / "mine")).id == "mine"
    assert only(hub_model(tmp_path, "org/name")).id == "org/name"


def test_missing_places_and_files_are_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    folders = [Folder("a", tmp_path / "none"), Folder("b", tmp_path / "file")]
    assert scan_places([*folders, HubCache("c", tmp_path / "x")]) == Registry()


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
        "org/pinned": "usable",
    }


def test_an_lm_studio_folder(tmp_path: Path) -> None:
    model(tmp_path / "mlx-community/whole", files=shards(2))
    model(tmp_path / "lmstudio-community/Llama-GGUF", config={}, files=["Llama-Q4_K_M.gguf"])
    model(tmp_path / "mlx-community/loading", files=["downloading_model.safetensors.part"])
    assert ids(scan_places([Folder("lmstudio", tmp_path)])) == {
        "mlx-community/whole": "usable",
        "lmstudio-community/Llama-GGUF": "model.gguf_only",
        "mlx-community/loading": "model.half_download",
    }


def test_folders_whose_names_are_not_unicode_are_ignored(tmp_path: Path) -> None:
    model(tmp_path / "org/m")
    try:
        (tmp_path / os.fsdecode(b"caf\xe9")).mkdir()
    except OSError:
        pytest.skip("this file system knows text only")
    model(tmp_path / os.fsdecode(b"caf\xe9"))
    assert ids(scan_places([Folder("models", tmp_path)])) == {"org/m": "usable"}


@pytest.mark.parametrize(
    "name", ["line\nbreak", "bell\x07", "next\u2028line", "\x1b[31mred", "right\u202eleft"]
)
def test_a_name_that_no_address_can_hold_is_skipped_with_the_reason(
    tmp_path: Path, name: str
) -> None:
    model(tmp_path / "org" / name)
    entry = only(tmp_path)
    assert entry.status == Status.SKIPPED
    assert entry.reason == Reason("model.name", {"name": ascii(f"org/{name}").strip("'")})
    assert entry.reason.message.isprintable()


def test_the_first_place_wins_and_the_others_are_shadowed(tmp_path: Path) -> None:
    first, second = model(tmp_path / "one/org/m"), model(tmp_path / "two/org/m")
    registry = scan_places([Folder("one", tmp_path / "one"), Folder("two", tmp_path / "two")])
    assert [entry.status for entry in registry.entries] == [Status.USABLE, Status.SHADOWED]
    assert registry.get_usable("org/m").path == first
    assert registry.entries[1].path == second
    assert registry.entries[1].reason.params == {"by": str(first), "source": "one"}


def test_a_partial_download_does_not_hide_a_complete_model(tmp_path: Path) -> None:
    model(tmp_path / "one/org/m", files=["model.safetensors.part"])
    whole = model(tmp_path / "two/org/m")
    registry = scan_places([Folder("one", tmp_path / "one"), Folder("two", tmp_path / "two")])
    assert [entry.status for entry in registry.entries] == [Status.SKIPPED, Status.USABLE]
    assert registry.get_usable("org/m").path == whole


def test_one_folder_reached_through_two_places_is_listed_once(tmp_path: Path) -> None:
    model(tmp_path / "one/org/m")
    both = [Folder(name, tmp_path / "one") for name in "ab"]
    assert len(scan_places(both).entries) == 1


def test_models_are_found_by_id_and_short_name(tmp_path: Path) -> None:
    for name in ("a/same", "b/same", "a/alone", "b/broken", "c/taken"):
        model(tmp_path / name, files=[] if name == "b/broken" else ["model.safetensors"])
    registry = scan_places([Folder("models", tmp_path)])
    assert registry.get_usable("alone").id == "a/alone"
    assert registry.get_usable("b/same").id == "b/same"
    with refused(NotFound, "model.ambiguous", ids="a/same, b/same"):
        registry.get_usable("same")
    with refused(ModelError, "model.no_weights"):
        registry.get_usable("broken")


@pytest.mark.parametrize(
    "name", ["", "/", "..", "../outside", "models/../outside", "a/alone/", "A/ALONE", "a\\alone"]
)
def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    model(tmp_path / "outside")
    model(tmp_path / "models/a/alone")
    with pytest.raises(NotFound):
        scan_places([Folder("models", tmp_path / "models")]).get_usable(name)


def test_places_have_an_order_and_can_be_disabled(tmp_path: Path) -> None:
    for where in ("given", "home/models", ".lmstudio/models"):
        model(tmp_path / where / "org" / where.partition("/")[0].strip("."))
    hub_model(tmp_path / ".cache/huggingface/hub", "org/cached")
    settings = Settings(model_dir=(tmp_path / "given",), home=tmp_path / "home")
    environ = {"HOME": str(tmp_path)}
    found = [entry.id for entry in discover(settings, environ).entries if entry.source != "bundled"]
    assert found == ["org/given", "org/home", "org/lmstudio", "org/cached"]
    places = dict.fromkeys(("home_models", "lmstudio", "hf_cache", "bundled"), False)
    off = Settings(home=tmp_path / "home", **places)
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
def test_variables_that_locate_the_hugging_face_cache(
    tmp_path: Path, variable: str, where: str
) -> None:
    hub_model(tmp_path / "there" / where, "org/cached")
    environ = {"HOME": str(tmp_path / "other-home"), variable: str(tmp_path / "there")}
    settings = Settings(home=tmp_path / "home", bundled=False)
    assert ids(discover(settings, environ)) == {"org/cached": "usable"}


def test_the_cache_path_may_contain_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_model(tmp_path / "disk/hub", "org/cached")
    monkeypatch.setenv("DISK", str(tmp_path / "disk"))
    settings = Settings(home=tmp_path / "home", bundled=False, lmstudio=False)
    assert ids(discover(settings, {"HF_HOME": "$DISK"})) == {"org/cached": "usable"}
    assert discover(settings, {"HF_HOME": "~no-such-user/hf"}).entries == ()


def test_bundled_models_come_last(tmp_path: Path) -> None:
    model(tmp_path / "omlx-demo/target")
    registry = discover(Settings(model_dir=(tmp_path,), home=tmp_path), {"HOME": str(tmp_path)})
    assert registry.get_usable("omlx-demo/target").source == "model-dir"
    assert {entry.id for entry in registry.usable if entry.source == "bundled"} <= {
        f"omlx-demo/{folder.name}" for folder in (BUNDLED / "omlx-demo").iterdir()
    }


def test_the_folder_of_another_program_is_only_read(tmp_path: Path) -> None:
    model(tmp_path / "home/models/org/m")
    (tmp_path / "home/settings.json").write_bytes(b'{"server": {"port": 1}}\r\n')
    (tmp_path / "home/stats.db").write_bytes(bytes(range(256)))

    def state() -> dict[Path, tuple[bytes, int]]:
        files = (path for path in tmp_path.rglob("*") if path.is_file())
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = state()
    discover(Settings(home=tmp_path / "home"), {"HOME": str(tmp_path)}).get_usable("org/m")
    assert state() == before


def test_discovery_does_not_import_mlx() -> None:
    imported = "not [name for name in sys.modules if name.startswith('mlx')]"
    program = f"import sys, omlx.models.catalog.discovery; assert {imported}"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_repositories_whose_snapshot_is_not_known_say_why(tmp_path: Path) -> None:
    several = hub_model(tmp_path, "org/several", main=False)
    shutil.copytree(several, several.with_name("f" * 40), symlinks=True)
    zeros = hub_model(tmp_path, "org/zeros")
    (zeros.parent.parent / "refs/main").write_bytes(bytes(40))
    hub_model(tmp_path, "org/unfinished", main=False, unfinished=1)
    assert ids(scan_places([HubCache("hf-cache", tmp_path)])) == {
        "org/several": "model.no_main",
        "org/zeros": "model.no_main",
        "org/unfinished": "model.half_download",
    }


def test_folders_copied_into_the_hugging_face_cache_are_found_beside_its_repositories(
    tmp_path: Path,
) -> None:
    cache = tmp_path / ".cache/huggingface/hub"
    hub_model(cache, "org/cached")
    model(cache / "plain")
    model(cache / "org/two-deep")
    model(cache / "models--org--loose")
    model(cache / "datasets--org--text/snapshots/x")
    registry = discover(Settings(home=tmp_path / "home", bundled=False), {"HOME": str(tmp_path)})
    assert {entry.id: entry.source for entry in registry.usable} == {
        "org/cached": "hf-cache",
        "org/loose": "hf-cache",
        "plain": "hf-copies",
        "org/two-deep": "hf-copies",
    }
    assert len(registry.entries) == 4


def test_repositories_of_the_cache_are_found_in_any_folder(tmp_path: Path) -> None:
    hub_model(tmp_path / "models", "org/copied")
    hub_model(tmp_path / "models/backup", "org/deeper", main=False)
    folder = Folder("models", tmp_path / "models")
    assert ids(scan_places([folder])) == {"org/copied": "usable", "org/deeper": "usable"}
    alone = Folder("models", tmp_path / "models/models--org--copied")
    assert ids(scan_places([alone])) == {"org/copied": "usable"}


def test_both_folders_of_lm_studio_are_searched(tmp_path: Path) -> None:
    model(tmp_path / ".lmstudio/models/org/new")
    model(tmp_path / ".cache/lm-studio/models/org/old")
    registry = discover(Settings(home=tmp_path / "home", bundled=False), {"HOME": str(tmp_path)})
    assert {entry.id: entry.source for entry in registry.entries} == {
        "org/new": "lmstudio",
        "org/old": "lmstudio",
    }


def test_stray_weights_are_listed_and_hide_no_folder(tmp_path: Path) -> None:
    model(tmp_path / "models", config={}, files=["stray.gguf"])
    model(tmp_path / "models/org", config={}, files=["model.safetensors"])
    model(tmp_path / "models/org/whole")
    assert ids(scan_places([Folder("models", tmp_path / "models")])) == {
        "models": "model.gguf_only",
        "org": "model.no_config",
        "org/whole": "usable",
    }
