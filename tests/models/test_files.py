"""Snapshot of a model's folder: facts are read once, and again after any file has changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from omlx.errors import ModelError
from omlx.models.catalog import files as module
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.files import ModelFiles, once
from tests.models.breakage import content, missing, truncated
from tests.refusals import refused
from tests.server.running import TARGET


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUNDLED / TARGET, tmp_path / "model"))


def replace_with_old_times(folder: Path) -> None:
    """Replace the config as a copy that keeps size and time would."""
    before = (folder / "config.json").stat()
    copy = folder / "copy"
    shutil.copyfile(folder / "config.json", copy)
    os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))
    copy.replace(folder / "config.json")


def test_facts_are_computed_once_for_the_same_files(folder: Path) -> None:
    calls: list[tuple[ModelFiles, str]] = []

    @once
    def count(files: ModelFiles, name: str) -> int:
        calls.append((files, name))
        return len(name)

    first, again = ModelFiles.at(folder), ModelFiles.at(folder)
    assert first is again is ModelFiles.recent(folder)
    assert [count(files, "one") for files in (first, again)] == [3, 3]
    assert count(first, "other") == 5
    assert calls == [(first, "one"), (first, "other")]
    assert first.config is again.config


@pytest.mark.parametrize(
    "change",
    [
        content("config.json", "{}"),
        content("model-package.json", "{}"),
        lambda folder: (folder / "additional_chat_templates/tool.jinja").write_text(
            "x"
        ),  # in place
        content("mtp/weights.safetensors", ""),
        missing("config.json"),
        replace_with_old_times,
    ],
    ids=["config", "package", "template", "head", "deleted", "replaced"],
)
def test_another_snapshot_follows_a_change(folder: Path, change: Callable[[Path], None]) -> None:
    content("additional_chat_templates/tool.jinja", "before")(folder)
    before = ModelFiles.at(folder)
    change(folder)
    assert ModelFiles.recent(folder) is before
    after = ModelFiles.at(folder)
    assert after != before
    assert ModelFiles.at(folder) is ModelFiles.recent(folder) is after


def test_an_error_is_raised_until_the_file_is_mended(folder: Path) -> None:
    text = (folder / "config.json").read_text()
    content("config.json", "[")(folder)
    files = ModelFiles.at(folder)
    for _ in range(2):
        with refused(ModelError, "model.config_unreadable", file="config.json"):
            _ = files.config
    content("config.json", text)(folder)
    assert ModelFiles.at(folder).config == json.loads(text)


def test_tensors_are_summarised(folder: Path) -> None:
    tensors = ModelFiles.at(folder).tensors
    assert "model.layers.#.input_layernorm.weight" in tensors.kinds
    assert tensors.count > len(tensors.kinds)
    assert tensors.names_any("vision", "layernorm")
    assert not tensors.names_any("vision")
    assert tensors.truncated is None
    truncated("model.safetensors", 0.9)(folder)
    reason = ModelFiles.at(folder).tensors.truncated
    assert (reason.code, reason.params["file"]) == ("model.truncated", "model.safetensors")


def test_a_folder_that_is_missing_has_no_files(tmp_path: Path) -> None:
    files = ModelFiles.at(tmp_path / "gone")
    assert (files.stamp, files.config, files.created) == ((), {}, 0)
    with refused(ModelError, "model.no_weights"):
        _ = files.weights


def test_the_least_recently_used_snapshots_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SNAPSHOTS", 2)
    monkeypatch.setattr(module, "_snapshots", {})
    first, second = ModelFiles.at(tmp_path / "1"), ModelFiles.at(tmp_path / "2")
    assert ModelFiles.at(tmp_path / "1") is first
    ModelFiles.at(tmp_path / "3")
    assert ModelFiles.recent(tmp_path / "1") is first
    assert ModelFiles.recent(tmp_path / "2") is not second
